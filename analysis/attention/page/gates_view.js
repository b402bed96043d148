// What an ELMo has in place of attention: its gates at each word, and the layers that a task mixes.

class GatesView {
  constructor() {
    const gates = data.gates.length;
    const first = element("tr", {}, element("th", {}, ""));
    const second = element("tr", {}, element("th", { scope: "col" }, "word"));
    this.headings = [];
    data.directions.forEach((direction) => data.layers.forEach((layer) => {
      const heading = element("th", { colspan: gates, scope: "colgroup", class: "first" }, `${direction}, layer ${layer}`);
      this.headings.push([heading, layer]);
      first.append(heading);
      data.gates.forEach((gate, g) => second.append(element("th", { scope: "col", class: g ? "" : "first" }, gate)));
    }));
    this.rows = data.tokens.map((_, place) => {
      const row = element("tr", { onmouseover: () => look("query", place, false), onclick: () => look("query", place, true) },
        element("th", { scope: "row", title: written(place) }, ...marked(written(place))));
      data.directions.forEach((_, d) => data.layers.forEach((_, l) => data.gates.forEach((_, g) => {
        row.append(element("td", { class: g ? "" : "first" }, bar(data.means[d][l][g][place], g), data.means[d][l][g][place].toFixed(3)));
      })));
      return row;
    });
    const body = element("tbody", { onmouseleave: () => look("query", -1, false) }, ...this.rows);
    this.info = element("aside", { class: "info", "aria-live": "polite", "aria-label": "Gates" });
    const table = element("table", {}, element("thead", {}, first, second), body);
    this.elements = [element("div", { class: "gates", tabindex: "0" }, table), this.info];
  }

  update() {
    for (const [heading, layer] of this.headings) heading.classList.toggle("chosen", layer === data.layers[state.layer]);
    const place = current();
    this.rows.forEach((row, n) => row.classList.toggle("active", n === place));
    recolour(this.elements[0]);
    if (place < 0) {
      const text = "A gate is the mean over the cells of a layer: 0 is closed, 1 open. The input gate lets the word in, the "
        + "forget gate keeps what was read before, the output gate shows the cell to the next layer. Point at a word, or "
        + "choose one with j and k.";
      this.info.replaceChildren(element("p", {}, text));
      return Promise.resolve();
    }
    const lines = data.directions.map((direction, d) => element("tr", {}, element("td", {}, direction),
      ...data.gates.map((_, g) => element("td", { class: "number" }, data.means[d][state.layer][g][place].toFixed(4)))));
    const names = element("tr", {}, element("th", {}, ""), ...data.gates.map((gate) => element("th", { class: "number" }, gate)));
    this.info.replaceChildren(
      element("h2", {}, `${written(place)} (word ${place + 1}), layer ${data.layers[state.layer]}`),
      element("table", {}, element("tbody", {}, names, ...lines)),
    );
    return Promise.resolve();
  }
}

class MixView {
  constructor() {
    const name = (layer) => (layer ? `layer ${layer}` : "words");
    this.rows = [];
    const parts = data.mixes.flatMap((mix) => {
      const weights = mix.layers.map((layer, n) => element("tr", {}, element("th", { scope: "row" }, name(layer)),
        element("td", {}, bar(mix.weights[n], n), mix.weights[n].toFixed(4))));
      const title = element("h2", {}, `Layer weights at the ${mix.place} of the task's head, times gamma ${mix.gamma.toFixed(4)}`);
      const table = element("table", {}, element("tbody", {}, ...weights));
      if (!mix.shares) return [title, table];
      const rows = data.tokens.map((_, place) => {
        const stack = element("div", { class: "stack" }, ...mix.layers.map((_, n) => part(mix.shares[n][place], n)));
        const numbers = mix.layers.map((_, n) => element("td", { class: "number" }, mix.shares[n][place].toFixed(3)));
        const row = element("tr", { onmouseover: () => look("query", place, false), onclick: () => look("query", place, true) },
          element("th", { scope: "row", title: written(place) }, ...marked(written(place))), element("td", {}, stack), ...numbers);
        this.rows.push([row, place]);
        return row;
      });
      const heads = mix.layers.map((layer) => element("th", { scope: "col" }, name(layer)));
      const text = "Share of each layer by word: its weight times the length of its vector, of the sum over the layers.";
      return [title, table, element("p", {}, text), element("table", {},
        element("thead", {}, element("tr", {}, element("th", {}, ""), element("th", {}, ""), ...heads)), element("tbody", {}, ...rows))];
    });
    this.elements = [element("div", { class: "gates", tabindex: "0", onmouseleave: () => look("query", -1, false) }, ...parts)];
  }

  update() {
    for (const [row, place] of this.rows) row.classList.toggle("active", place === current());
    recolour(this.elements[0]);
    return Promise.resolve();
  }
}

function part(value, number) {
  const made = element("i", { "data-colour": number });
  made.style.width = `${100 * value}%`;
  return made;
}

const bar = (value, number) => element("span", { class: "bar" }, part(value, number));

function recolour(within) {
  for (const one of within.querySelectorAll("[data-colour]")) one.style.setProperty("--head", colour(Number(one.dataset.colour) * 2));
}
