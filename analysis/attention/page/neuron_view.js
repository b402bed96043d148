// Neuron view: how the weights of a token come about. Its query, each key, their products element by element, the sum
// of these (the dot product), and the softmax over the keys.

// Pixels of the gaps, the column of dot products, and its number; in a narrow window there are no bars behind the numbers.
const WIDE = { gap: 14, dots: 96, number: 52 }, NARROW = { gap: 6, dots: 46, number: 44 };
const WIDE_FROM = 340;

class NeuronView {
  constructor() {
    this.columns = new Columns({
      left: "query of", right: "key of", draw: (context, frame) => this.strips(context, frame),
      focus: () => (state.side = "query"),
    });
    this.top = element("canvas", { class: "strip", "aria-hidden": "true" });
    this.message = element("p", { class: "message hidden" });
    this.columns.pair.prepend(this.message);
    this.elements = [this.columns.pair, this.columns.info];
    this.columns.middle.addEventListener("mousemove", (event) => this.point(event));
    this.columns.middle.addEventListener("mouseleave", () => this.point(null));
  }

  /** The token whose query is shown. */
  query() {
    return state.side === "query" && current() >= 0 ? current() : this.last ?? 0;
  }

  async update() {
    const layer = state.layer;
    const [weights, neurons] = await Promise.all([weightsOf(layer), neuronsOf(layer)]);
    if (layer !== state.layer) return;
    this.weights = weights;
    this.neurons = neurons;
    this.columns.scroll.classList.toggle("hidden", !neurons);
    this.message.classList.toggle("hidden", !!neurons);
    if (!neurons) {
      const number = data.layers[state.layer];
      const some = data.neurons.length ? `Of the layers ${data.neurons.join(", ")} alone` : "Of no layer";
      this.message.textContent = `${some} this page has queries and keys, so that it stays small. For those of layer `
        + `${number} write a page with --layers ${number}.`;
      this.columns.heading.replaceChildren();
      this.columns.info.replaceChildren();
      return;
    }
    const query = this.last = this.query();
    const head = firstHead();
    state.side = "query";
    const numbers = data.tokens.map((_, key) => (excluded[key] ? "" : shown(this.weight(head, query, key))));
    this.columns.mark(numbers, (key) => !sees(query, key));
    this.columns.left.children[query].classList.add("active");
    this.measure();
    this.inform(query, head, -1);
    this.columns.draw();
    this.heads(query, head);
  }

  weight(head, query, key) {
    return this.weights[(head * count + query) * count + key] * unit;
  }

  /** The vector of a token: queries or keys, of K numbers. */
  vector(kind, head, token) {
    const start = (head * count + token) * data.width;
    return this.neurons[kind].subarray(start, start + data.width);
  }

  dot(head, query, key) {
    const q = this.vector("queries", head, query), k = this.vector("keys", head, key);
    let sum = 0;
    for (let n = 0; n < data.width; n++) sum += q[n] * k[n];
    return sum;
  }

  /** Where the parts of a row begin, and the scales of its colours. */
  measure() {
    const width = this.columns.middle.clientWidth || this.columns.width; // none while it is printed
    this.places = width < WIDE_FROM ? NARROW : WIDE;
    const { gap, dots } = this.places;
    const room = (width - dots - 3 * gap) / 2;
    this.cell = Math.max(Math.min(room / data.width, 14), 0.25);
    this.strip = this.cell * data.width;
    this.keysAt = gap;
    this.productsAt = this.keysAt + this.strip + gap;
    this.dotsAt = this.productsAt + this.strip + gap;
    const head = firstHead(), q = this.vector("queries", head, this.last);
    let vector = 1e-9, product = 1e-9, dot = 1e-9;
    for (const x of q) vector = Math.max(vector, Math.abs(x));
    this.dots = data.tokens.map((_, key) => {
      const k = this.vector("keys", head, key);
      let sum = 0;
      for (let n = 0; n < data.width; n++) {
        vector = Math.max(vector, Math.abs(k[n]));
        product = Math.max(product, Math.abs(q[n] * k[n]));
        sum += q[n] * k[n];
      }
      if (sees(this.last, key)) dot = Math.max(dot, Math.abs(sum));
      return sum;
    });
    this.scales = { vector, product, dot };
  }

  cells(context, x, y, height, values, scale) {
    for (let n = 0; n < data.width; n++) {
      const value = values(n);
      context.fillStyle = `rgba(${variable(value < 0 ? "--negative" : "--positive")}, ${Math.min(Math.abs(value) / scale, 1)})`;
      context.fillRect(x + n * this.cell, y, this.cell > 3 ? this.cell - 0.5 : this.cell, height);
    }
  }

  /** The query above the keys, and the names of the columns. */
  heads(query, head) {
    this.columns.heading.replaceChildren(this.top);
    const width = this.columns.middle.clientWidth || this.columns.width; // none while it is printed
    const context = prepare(this.top, width, 44);
    const q = this.vector("queries", head, query);
    this.cells(context, this.keysAt, 4, 16, (n) => q[n], this.scales.vector);
    context.strokeStyle = variable("--rule");
    context.strokeRect(this.keysAt - 0.5, 3.5, this.strip + 1, 17);
    context.fillStyle = variable("--ink");
    context.font = "12px system-ui, sans-serif";
    context.textBaseline = "middle";
    const name = (x, y, room, ...names) =>
      context.fillText(names.find((each) => context.measureText(each).width <= room) ?? names.at(-1), x, y);
    name(this.productsAt, 12, width - this.productsAt, "← query");
    name(this.keysAt, 34, this.strip, "keys", "key");
    name(this.productsAt, 34, this.strip, "query × key", "q × k");
    name(this.dotsAt, 34, width - this.dotsAt, "dot product", "dot");
  }

  strips(context, { width, height, row, first, last, y }) {
    context.clearRect(0, 0, width, height);
    if (!this.neurons) return;
    const head = firstHead(), query = this.last, ink = variable("--ink"), rule = variable("--rule");
    const q = this.vector("queries", head, query), strip = Math.max(row - 6, 5);
    context.font = `${Math.min(row - 3, 13)}px system-ui, sans-serif`;
    context.textBaseline = "middle";
    context.lineWidth = 1;
    for (let key = first; key <= last; key++) {
      const k = this.vector("keys", head, key), top = y(key) - strip / 2;
      context.globalAlpha = sees(query, key) && !excluded[key] ? 1 : 0.25;
      this.cells(context, this.keysAt, top, strip, (n) => k[n], this.scales.vector);
      this.cells(context, this.productsAt, top, strip, (n) => q[n] * k[n], this.scales.product);
      context.strokeStyle = rule;
      context.strokeRect(this.keysAt - 0.5, top - 0.5, this.strip + 1, strip + 1);
      context.strokeRect(this.productsAt - 0.5, top - 0.5, this.strip + 1, strip + 1);
      context.fillStyle = ink;
      context.textAlign = "right";
      const dot = this.dots[key], { dots, number } = this.places, most = dots - number - 8;
      context.fillText(dot.toFixed(Math.abs(dot) < 100 ? 2 : 1), this.dotsAt + number, y(key));
      context.textAlign = "left";
      if (most <= 0) continue;
      context.fillStyle = `rgb(${variable(dot < 0 ? "--negative" : "--positive")})`;
      const length = Math.max(Math.min((Math.abs(dot) / this.scales.dot) * most, most), 1);
      context.fillRect(this.dotsAt + number + 5, top + 2, length, strip - 4);
    }
    context.globalAlpha = 1;
  }

  point(event) {
    if (!this.neurons) return;
    let key = -1, n = -1;
    if (event) {
      const box = this.columns.middle.getBoundingClientRect();
      const x = event.clientX - box.left;
      key = Math.min(Math.max(Math.floor((event.clientY - box.top) / this.columns.row), 0), count - 1);
      const start = x >= this.productsAt ? this.productsAt : this.keysAt;
      n = Math.floor((x - start) / this.cell);
      if (n < 0 || n >= data.width) n = -1;
    }
    this.inform(this.last, firstHead(), key, n);
  }

  inform(query, head, key, n = -1) {
    const line = (name, value) =>
      element("tr", {}, element("td", {}, name), element("td", { class: "number" }, value));
    const rows = [];
    const root = Math.sqrt(data.width);
    if (key >= 0) {
      const dot = this.dots[key];
      rows.push(line("dot product", dot.toFixed(3)), line(`divided by √${data.width}`, (dot / root).toFixed(3)));
      rows.push(line("weight (softmax)", sees(query, key) ? shown(this.weight(head, query, key)) : "not seen"));
      if (n >= 0) {
        const q = this.vector("queries", head, query)[n], k = this.vector("keys", head, key)[n];
        rows.push(line(`query, element ${n + 1}`, q.toFixed(3)), line(`key, element ${n + 1}`, k.toFixed(3)));
        rows.push(line("their product", (q * k).toFixed(3)));
      }
    }
    const blue = element("span", {}, "positive"), orange = element("span", {}, "negative");
    blue.style.color = `rgb(${variable("--positive")})`;
    orange.style.color = `rgb(${variable("--negative")})`;
    this.columns.info.replaceChildren(
      element("h2", {}, key < 0 ? `${written(query)} (token ${query + 1})` : `${written(query)} → ${written(key)}`),
      element("table", {}, element("tbody", {}, ...rows)),
      key < 0 ? element("p", {}, "Point at a strip: its numbers appear here. Click a token on the left for its query.") : "",
      element("p", {}, blue, " and ", orange, " elements; the stronger the colour, the larger."),
    );
  }
}
