// Model view: the map of every head as a small picture, rows the tokens that read, columns those that are read.

const probe = document.createElement("canvas").getContext("2d", { willReadFrequently: true });

/** The red, green and blue of a colour as CSS writes it. */
function channels(colour) {
  probe.fillStyle = colour;
  probe.fillRect(0, 0, 1, 1);
  return probe.getImageData(0, 0, 1, 1).data;
}

class ModelView {
  constructor() {
    this.size = data.heads.length > 16 ? 48 : data.heads.length > 8 ? 72 : 104;
    const corner = element("th", {}, "");
    const heads = data.heads.map((head) => element("th", { scope: "col" }, `head ${head}`));
    this.thumbs = data.layers.map((layer, l) => data.heads.map((head, h) => element(
      "button",
      {
        class: "thumb", type: "button", tabindex: "-1", "aria-label": `Layer ${layer}, head ${head}: open in the head view`,
        title: `layer ${layer}, head ${head}`, onclick: () => this.open(l, h),
      },
      element("canvas", { "aria-hidden": "true" }),
    )));
    const rows = this.thumbs.map((row, l) => element(
      "tr", {}, element("th", { scope: "row" }, `layer ${data.layers[l]}`), ...row.map((thumb) => element("td", {}, thumb)),
    ));
    const table = element("table", {}, element("thead", {}, element("tr", {}, corner, ...heads)), element("tbody", {}, ...rows));
    table.style.setProperty("--thumb", `${this.size}px`);
    this.elements = [element("div", { class: "grid" }, table)];
    this.drawn = "";
  }

  open(layer, head) {
    choose(layer, head);
    show("head");
  }

  update() {
    this.thumbs.forEach((row, l) => row.forEach((thumb, h) => {
      const now = l === state.layer && h === firstHead();
      thumb.setAttribute("aria-current", now);
      thumb.tabIndex = now ? 0 : -1;
    }));
    // The pictures depend on the theme and on what is hidden.
    const key = `${root.dataset.theme} ${[...state.hidden]}`;
    if (key === this.drawn) return Promise.resolve();
    this.drawn = key;
    return this.fill(key);
  }

  async fill(key) {
    for (let l = 0; l < data.layers.length; l++) {
      const weights = await weightsOf(l);
      if (key !== this.drawn) return;
      for (let h = 0; h < data.heads.length; h++) this.picture(this.thumbs[l][h].firstChild, weights, h);
    }
  }

  focus() {
    this.thumbs[state.layer][firstHead()].focus();
  }

  /** Draws a map: the largest weight of the tokens that share a pixel. Its opacity is the root of its share of the
   *  largest weight of all. */
  picture(canvas, weights, head) {
    const side = Math.min(count, this.size * 2);
    const largest = new Uint16Array(side * side);
    for (let query = 0; query < count; query++) {
      if (excluded[query]) continue;
      const line = Math.floor((query * side) / count) * side, row = (head * count + query) * count;
      for (let key = 0; key < count; key++) {
        const weight = weights[row + key];
        const pixel = line + Math.floor((key * side) / count);
        if (weight > largest[pixel] && !excluded[key]) largest[pixel] = weight;
      }
    }
    canvas.width = canvas.height = side;
    const context = canvas.getContext("2d");
    const [red, green, blue] = channels(colour(head));
    const image = context.createImageData(side, side);
    const most = largest.reduce((a, b) => Math.max(a, b), 1);
    canvas.parentElement.title = `${canvas.parentElement.title.split(";")[0]}; largest weight ${shown(most * unit)}`;
    for (let n = 0; n < largest.length; n++)
      image.data.set([red, green, blue, 255 * Math.sqrt(largest[n] / most)], 4 * n);
    context.putImageData(image, 0, 0);
  }
}
