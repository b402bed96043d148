// Two columns of tokens with a canvas between them, which is as high as its window and draws what is in sight: texts
// of a thousand tokens are longer than a canvas may be.

class Columns {
  /** options: {left, middle, right: headings, draw(context, frame)} */
  constructor(options) {
    this.options = options;
    this.row = count <= 24 ? 22 : count <= 80 ? 18 : 16;
    this.canvas = element("canvas", { "aria-hidden": "true" });
    this.left = this.column("query");
    this.right = this.column("key");
    this.middle = element("div", { class: "middle-cell" }, this.canvas);
    this.rows = element("div", { class: "rows" }, this.left, this.middle, this.right);
    this.scroll = element("div", { class: "scroll", tabindex: "-1", onscroll: () => this.draw() }, this.rows);
    this.heading = element("div", { class: "middle" });
    this.info = element("aside", { class: "info", "aria-live": "polite", "aria-label": "Weights" });
    this.heads = element(
      "div", { class: "heads" },
      element("div", { class: "left" }, options.left), this.heading, element("div", { class: "right" }, options.right),
    );
    this.pair = element("div", { class: "pair" }, this.heads, this.scroll);
    this.size(this.rows, this.row, count);
  }

  size(rows, row, height) {
    rows.style.setProperty("--row", `${row}px`);
    rows.style.setProperty("--count", height);
  }

  /** For paper: the same in blocks of rows, none of which is torn between two sheets. */
  print(printing) {
    this.sheets?.remove();
    this.rows.classList.toggle("hidden", printing);
    if (!printing) return;
    const row = 15, most = 52;
    this.sheets = element("div");
    this.scroll.append(this.sheets);
    for (let first = 0; first < count; first += most) {
      const last = Math.min(first + most, count) - 1, canvas = element("canvas");
      const part = (column) => {
        const made = column.cloneNode(false);
        for (const token of [...column.children].slice(first, last + 1)) made.append(token.cloneNode(true));
        for (const token of made.children) token.removeAttribute("id");
        return made;
      };
      const rows = element("div", { class: "rows sheet" }, part(this.left), element("div", { class: "middle-cell" }, canvas), part(this.right));
      const height = (last - first + 1) * row;
      this.size(rows, row, last - first + 1);
      this.sheets.append(rows);
      const y = (place) => (place - first + 0.5) * row;
      this.options.draw(prepare(canvas, this.width, height), { width: this.width, height, row, first, last, y });
    }
  }

  column(side) {
    const tokens = data.tokens.map((_, place) => {
      const text = element("span", { class: "text" }, ...marked(written(place)));
      const token = element("div", { class: "token", role: "option", id: `${side}-${place}`, title: written(place) }, text);
      token.classList.toggle("special", data.special[place]);
      token.classList.toggle("second", data.segments[place] === 1);
      if (side === "key") token.append(element("span", { class: "number" }));
      return token;
    });
    const at = (event) => {
      const token = event.target.closest?.(".token");
      return token ? tokens.indexOf(token) : -1;
    };
    return element(
      "div",
      {
        class: `column ${side === "query" ? "left" : "right"}`, role: "listbox", tabindex: "0",
        "aria-label": side === "query" ? "Tokens that read (queries)" : "Tokens that are read (keys)",
        onmouseover: (event) => look(side, at(event), false),
        onmouseleave: () => look(side, -1, false),
        onclick: (event) => look(side, at(event), true),
        onfocus: () => this.options.focus?.(side),
      },
      ...tokens,
    );
  }

  /** Marks the tokens that are looked at and excluded; numbers: text behind each key, or null. */
  mark(numbers, unseen) {
    for (const [side, column] of [["query", this.left], ["key", this.right]]) {
      const active = state.side === side ? current() : -1;
      column.setAttribute("aria-activedescendant", active >= 0 ? `${side}-${active}` : "");
      for (let place = 0; place < count; place++) {
        const token = column.children[place];
        token.classList.toggle("active", place === active);
        token.classList.toggle("excluded", excluded[place] === 1);
        token.setAttribute("aria-selected", place === active);
        if (side === "key") {
          token.classList.toggle("unseen", !!unseen?.(place));
          const text = numbers?.[place] ?? "";
          if (token.lastChild.textContent !== text) token.lastChild.textContent = text;
        }
      }
    }
  }

  reveal(place) {
    const top = place * this.row, height = this.scroll.clientHeight;
    if (top < this.scroll.scrollTop || top + this.row > this.scroll.scrollTop + height)
      this.scroll.scrollTop = top - height / 2;
  }

  draw() {
    const width = this.middle.clientWidth;
    if (!width) return;
    // The headings stand above their columns, beside which there may be a scrollbar.
    this.heads.style.paddingRight = `${this.scroll.offsetWidth - this.scroll.clientWidth}px`;
    this.width = width;
    const whole = count * this.row;
    const height = Math.min(this.scroll.clientHeight || whole, whole);
    const top = Math.min(this.scroll.scrollTop, whole - height);
    const context = prepare(this.canvas, width, height);
    const first = Math.max(Math.floor(top / this.row), 0);
    const last = Math.min(Math.ceil((top + height) / this.row), count) - 1;
    const y = (place) => (place + 0.5) * this.row - top;
    this.options.draw(context, { width, height, row: this.row, first, last, y });
  }
}
