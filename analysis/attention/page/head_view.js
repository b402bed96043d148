// Head view: a line from each token that reads to each that is read, in the colour of the head.

const FAINTEST = 0.01; // weights below it are drawn only for the token that is looked at

class HeadView {
  constructor() {
    this.columns = new Columns({
      left: "reads", right: "is read, weight", draw: (context, frame) => this.lines(context, frame),
    });
    this.elements = [this.columns.pair, this.columns.info];
  }

  async update() {
    const layer = state.layer;
    const weights = await weightsOf(layer);
    if (layer !== state.layer) return; // another one was chosen meanwhile
    this.weights = weights;
    const place = current();
    const heads = shownHeads();
    this.columns.heading.textContent = place < 0
      ? `opacity of a line: its weight (from ${FAINTEST} on)` : `lines and numbers: weights of the marked token${heads.length > 1 ? "; numbers: their mean" : ""}`;
    let numbers = null;
    if (place >= 0 && heads.length) {
      const mean = (other) => heads.reduce((sum, head) => sum + this.weight(head, other), 0) / heads.length;
      numbers = data.tokens.map((_, other) => (excluded[other] || excluded[place] ? "" : shown(mean(other))));
    }
    const unseen = place >= 0 && state.side === "query" ? (key) => !sees(place, key) : null;
    this.columns.mark(state.side === "query" ? numbers : null, unseen);
    this.inform(place, heads);
    this.columns.draw();
  }

  /** The weight between the token that is looked at and another one. */
  weight(head, other) {
    const [query, key] = state.side === "query" ? [current(), other] : [other, current()];
    return this.weights[(head * count + query) * count + key] * unit;
  }

  inform(place, heads) {
    const info = this.columns.info;
    if (place < 0) {
      const text = "Point at a token, or choose one with j and k: its weights appear here. A click keeps it.";
      info.replaceChildren(element("p", {}, text));
      return;
    }
    const reads = state.side === "query";
    const title = `${written(place)} (token ${place + 1}) ${reads ? "reads" : "is read by"}`;
    const all = data.tokens.flatMap((_, other) => (excluded[other] || !sees(...(reads ? [place, other] : [other, place]))
      ? [] : heads.map((head) => [this.weight(head, other), other, head])));
    const largest = all.sort((a, b) => b[0] - a[0]).slice(0, 16);
    const rows = largest.map(([weight, other, head]) => {
      const row = element(
        "tr", {}, element("td", {}, `${written(other)} (${other + 1})`),
        element("td", {}, `head ${data.heads[head]}`), element("td", { class: "number" }, shown(weight)),
      );
      row.children[1].style.color = colour(head);
      return row;
    });
    info.replaceChildren(
      element("h2", {}, title), element("table", {}, element("tbody", {}, ...rows)),
      all.length > largest.length ? element("p", {}, `The ${largest.length} largest of ${all.length} are listed.`) : "",
    );
  }

  lines(context, frame) {
    const place = current();
    const { width, y, first, last } = frame;
    context.clearRect(0, 0, width, frame.height);
    for (const head of shownHeads()) {
      // Lines of about one opacity are drawn together: a stroke for each would take seconds.
      const levels = new Map();
      const base = head * count * count;
      let strongest = 1;
      if (place >= 0) for (let other = 0; other < count; other++)
        if (!excluded[other]) strongest = Math.max(strongest, this.weight(head, other) / unit);
      for (let query = 0; query < count; query++) {
        if (excluded[query] || (place >= 0 && state.side === "query" && query !== place)) continue;
        for (let key = 0; key < count; key++) {
          if (excluded[key] || (place >= 0 && state.side === "key" && key !== place)) continue;
          if ((query < first && key < first) || (query > last && key > last)) continue;
          const weight = this.weights[base + query * count + key];
          // Of the token that is looked at, the strongest line is opaque.
          const alpha = place >= 0 ? weight / strongest : weight * unit;
          if (alpha < FAINTEST) continue;
          const level = Math.ceil(alpha * 20);
          if (!levels.has(level)) levels.set(level, []);
          levels.get(level).push(query, key);
        }
      }
      for (const [level, ends] of [...levels].sort((a, b) => a[0] - b[0])) {
        context.strokeStyle = colour(head, level / 20);
        context.lineWidth = place >= 0 ? 1 + level / 10 : 1.5;
        context.beginPath();
        for (let n = 0; n < ends.length; n += 2) {
          context.moveTo(4, y(ends[n]));
          context.lineTo(width - 4, y(ends[n + 1]));
        }
        context.stroke();
      }
    }
  }
}
