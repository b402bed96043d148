// A text whose tokens are coloured by how probable the model finds them, or by how sure it is.

const FULL = 0.72; // the opacity of a token as surprising as a uniform guess
const [LOG_PROB, ENTROPY, RANK, GUESSES] = [0, 1, 2, 3];
const COLOURS = { surprise: "log-probability", entropy: "entropy" };
const tokens = data.documents.flat();
const state = { colour: "surprise", direction: data.directions[0], hover: -1, pinned: -1 };
const current = () => (state.hover >= 0 ? state.hover : state.pinned);
const predictionOf = (place) => tokens[place][2][state.direction];
const nameOf = (number) => withSpacesDrawn(data.names[number]);
const percent = (share) => `${(100 * share).toFixed(share < 0.1 ? 2 : 1)} %`;

let text, spans, info, buttons = [];

function build() {
  const group = (name, key, choices, chosen) => {
    const own = Object.entries(choices).map(([value, label]) => {
      const button = element("button", { type: "button", id: `${chosen}-${value}`, onclick: () => { state[chosen] = value; draw(); } }, label);
      buttons.push([button, chosen, value]);
      return button;
    });
    return element("span", { class: "group", title: `key ${key}` }, element("span", { class: "name" }, name), ...own);
  };
  at("controls").append(group("Colour", "c", COLOURS, "colour"));
  if (data.directions.length > 1)
    at("controls").append(group("Direction", "d", Object.fromEntries(data.directions.map((name) => [name, name])), "direction"));
  at("controls").append(element("span", { class: "scale text", id: "scale" }, "0", element("i", {}),
    `${data.uniform.toFixed(1)} nats`));
  at("status").textContent = data.figures.map(([name, value]) =>
    `${name} ${Number.isInteger(value) ? value : value.toPrecision(5)}`).join(" · ");
  spans = [];
  const paragraphs = data.documents.map((document) => element("p", {}, ...document.flatMap(([name]) => {
    const place = spans.length, own = data.names[name];
    const span = element("span", { class: "token", role: "option", id: `token-${place}` }, ...marked(withSpacesDrawn(own)));
    spans.push(span);
    // A token that ends a line ends one of the page too.
    return own.includes("\n") ? [span, element("br")] : [span, element("wbr")];
  })));
  const at_ = (event) => {
    const span = event.target.closest?.(".token");
    return span ? Number(span.id.slice("token-".length)) : -1;
  };
  text = element("div", { class: "text", role: "listbox", tabindex: "0", id: "text", "aria-label": "Tokens",
    onmouseover: (event) => look(at_(event)), onmouseleave: () => look(-1),
    onclick: (event) => pin(at_(event) === state.pinned ? -1 : at_(event)) }, ...paragraphs);
  info = element("aside", { class: "info", "aria-live": "polite", "aria-label": "Prediction" });
  at("view").append(text, info);
}

function look(place) {
  if (place === state.hover) return;
  state.hover = place;
  draw();
}

function pin(place) {
  state.pinned = place;
  state.hover = -1;
  if (place >= 0) spans[place].scrollIntoView({ block: "nearest" });
  draw();
}

function step(by) {
  const now = state.pinned >= 0 ? state.pinned : by > 0 ? -1 : tokens.length;
  pin(Math.min(Math.max(now + by, 0), tokens.length - 1));
}

/** The next token in the order of surprise, the least probable one first. */
function nextSurprise() {
  const order = tokens.flatMap((_, place) => (predictionOf(place) ? [place] : []))
    .sort((a, b) => predictionOf(a)[LOG_PROB] - predictionOf(b)[LOG_PROB]);
  pin(order[(order.indexOf(state.pinned) + 1) % order.length] ?? -1);
}

function turn(name, values) {
  state[name] = values[(values.indexOf(state[name]) + 1) % values.length];
  draw();
}

function value(one) {
  return state.colour === "surprise" ? -one[LOG_PROB] : one[ENTROPY];
}

function draw() {
  const active = current();
  for (const [button, name, own] of buttons) button.setAttribute("aria-selected", state[name] === own);
  for (const node of [text, at("scale")]) node.dataset.colour = state.colour;
  spans.forEach((span, place) => {
    const one = predictionOf(place);
    span.style.setProperty("--share", one ? (FULL * Math.min(value(one) / data.uniform, 1)).toFixed(3) : 0);
    span.classList.toggle("unscored", !one);
    span.classList.toggle("active", place === active);
    span.setAttribute("aria-selected", place === active);
  });
  text.setAttribute("aria-activedescendant", active >= 0 ? `token-${active}` : "");
  inform(active);
  root.dataset.drawn = `${state.colour} ${state.direction} ${active}`;
}

function inform(place) {
  if (place < 0) {
    const words = "Point at a token, or choose one with j and k: what the model expected there appears here. A click keeps it.";
    return info.replaceChildren(element("p", {}, words));
  }
  const [name, scored, predictions] = tokens[place];
  const parts = Object.entries(predictions).flatMap(([direction, one]) => {
    const own = one[GUESSES].map(([guess, share]) => {
      const bar = element("i");
      bar.style.width = `${100 * share}%`;
      return element("tr", { class: guess === scored ? "own" : "" }, element("td", {}, nameOf(guess)),
        element("td", {}, element("span", { class: "bar" }, bar)), element("td", { class: "number" }, percent(share)));
    });
    const head = data.directions.length > 1 ? [element("h2", {}, direction)] : [];
    return [...head,
      element("p", {}, `log-probability ${one[LOG_PROB].toFixed(3)} (${percent(Math.exp(one[LOG_PROB]))}), rank ${one[RANK]}`),
      element("p", {}, `entropy ${one[ENTROPY].toFixed(3)} nats: as of ${Math.exp(one[ENTROPY]).toFixed(1)} equal choices`),
      element("table", {}, element("tbody", {}, ...own))];
  });
  info.replaceChildren(element("h2", {}, `${nameOf(name)} (token ${place + 1})`),
    ...(scored === name ? [] : [element("p", {}, `The vocabulary lacks it: it is scored as ${nameOf(scored)}.`)]),
    ...(parts.length ? parts : [element("p", {}, "Nothing predicts it: it begins the text.")]));
}

const several = data.directions.length > 1;
const KEYS = [
  [["j", "k"], "next, previous token; also → and ←", true],
  [["n"], "the next token in the order of surprise", true],
  [["c"], "colours: log-probability, entropy", true],
  [["d"], "direction: forward, backward", several],
  [["Esc"], "look at no token", true],
  [["t"], "light or dark colours", true],
  [["Tab"], "next button, or the text", true],
  [["?"], "this list", true],
];
const ACTIONS = {
  j: () => step(1), k: () => step(-1), ArrowRight: () => step(1), ArrowLeft: () => step(-1), n: nextSurprise,
  c: () => turn("colour", Object.keys(COLOURS)), d: () => turn("direction", data.directions), Escape: () => pin(-1),
};

build();
startPage(KEYS, draw, draw);
document.addEventListener("keydown", (event) => act(ACTIONS, event));
draw();
