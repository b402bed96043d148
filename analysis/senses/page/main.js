// The occurrences of a word as points of a plane, one layer at a time.

const SVG = "http://www.w3.org/2000/svg";
const SHAPES = ["M0-6A6 6 0 1 1 0 6A6 6 0 1 1 0-6Z", "M-5.5-5.5H5.5V5.5H-5.5Z", "M0-7L6.5 5H-6.5Z", "M0-7.5L6 0L0 7.5L-6 0Z"];
const COLOURS = { light: ["#0072b2", "#c04f00", "#00795a", "#a8488a", "#8a6000", "#2b7fb0", "#6b6b6b"],
                  dark: ["#63b3ed", "#f08c4a", "#3ecfa0", "#e69ac5", "#e9b949", "#8fd3ff", "#b8b8b8"] };
const count = data.texts.length;
const state = { layer: data.layers.length - 1, hover: -1, pinned: -1, alone: -1 };
const current = () => (state.hover >= 0 ? state.hover : state.pinned);
const groupsOf = (layer) => data.groups[data.layers[layer].group];
const nameOf = (group) => (data.senses ? data.senses[group] : `cluster ${group + 1}`);
const figure = (value) => (value == null ? "–" : value.toFixed(3));

let svg, points, slider, output, chips, info, rows, caption;

function drawing(name, attributes) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

function paint(node, group) {
  const colours = COLOURS[root.dataset.theme];
  node.style.setProperty("--head", colours[group % colours.length]);
}

function build() {
  slider = element("input", { type: "range", id: "layer", min: 0, max: data.layers.length - 1, step: 1,
    "aria-label": "Layer", oninput: () => choose(Number(slider.value)) });
  output = element("output", { for: "layer", id: "layer-name" });
  chips = element("span", { class: "group", id: "groups" });
  at("controls").append(element("span", { class: "group" }, element("span", { class: "name" }, "Layer"), slider, output), chips);
  svg = drawing("svg", { tabindex: 0, role: "img", id: "plot" });
  svg.append(drawing("line", { class: "axis", id: "axis-x" }), drawing("line", { class: "axis", id: "axis-y" }));
  points = data.texts.map((_, place) => {
    const point = drawing("path", { class: "point", id: `point-${place}` });
    point.addEventListener("mouseenter", () => look(place));
    point.addEventListener("mouseleave", () => look(-1));
    point.addEventListener("click", () => pin(place === state.pinned ? -1 : place));
    svg.append(point);
    return point;
  });
  caption = element("p", { class: "caption" });
  info = element("aside", { class: "info", "aria-live": "polite", "aria-label": "Sentence" });
  rows = data.layers.map((layer, place) => element("tr", { onclick: () => choose(place) },
    element("th", { scope: "row" }, layer.name), ...data.columns.map(([key]) => element("td", { class: "number" }, figure(layer[key])))));
  const head = element("tr", {}, element("th", {}, "layer"), ...data.columns.map(([, name]) => element("th", { class: "number" }, name)));
  const table = element("div", { class: "layers" }, element("table", {}, element("thead", {}, head), element("tbody", {}, ...rows)));
  at("view").append(element("div", { class: "plot" }, svg, caption), element("div", { class: "info" }, info, table));
  info.classList.remove("info");
}

function choose(layer) {
  state.layer = Math.min(Math.max(layer, 0), data.layers.length - 1);
  state.alone = -1;
  draw();
}

function look(place) {
  state.hover = place;
  draw();
}

function pin(place) {
  state.pinned = place;
  state.hover = -1;
  draw();
}

function step(by) {
  const now = state.pinned >= 0 ? state.pinned : by > 0 ? -1 : count;
  pin(Math.min(Math.max(now + by, 0), count - 1));
}

/** Shows one group alone, or all again. */
function alone(group) {
  state.alone = state.alone === group ? -1 : group;
  draw();
}

function draw() {
  const layer = data.layers[state.layer], groups = groupsOf(state.layer), active = current();
  slider.value = state.layer;
  slider.setAttribute("aria-valuetext", layer.name);
  output.textContent = layer.name;
  place(layer, groups, active);
  drawChips(groups);
  rows.forEach((row, n) => row.classList.toggle("chosen", n === state.layer));
  caption.textContent = layer.note;
  inform(active, groups);
  root.dataset.drawn = `${state.layer} ${active} ${state.alone}`;
}

function place(layer, groups, active) {
  const width = svg.clientWidth || 640, height = svg.clientHeight || 420, edge = 22;
  const spread = [0, 1].map((axis) => Math.max(...layer.points.map((point) => Math.abs(point[axis])), 1e-9));
  // One scale for both axes, so that distances are true.
  const scale = Math.min((width / 2 - edge) / spread[0], (height / 2 - edge) / spread[1]);
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.setAttribute("aria-label", `${count} occurrences of ${data.word}, ${layer.name}`);
  const line = (id, ends) => Object.entries(ends).forEach(([key, value]) => at(id).setAttribute(key, value));
  line("axis-x", { x1: 0, x2: width, y1: height / 2, y2: height / 2 });
  line("axis-y", { x1: width / 2, x2: width / 2, y1: 0, y2: height });
  points.forEach((point, n) => {
    const [x, y] = layer.points[n];
    const size = n === active ? 1.6 : count > 400 ? 0.6 : 1;
    point.setAttribute("d", SHAPES[groups[n] % SHAPES.length]);
    point.style.setProperty("transform", `translate(${(width / 2 + x * scale).toFixed(2)}px, ${(height / 2 - y * scale).toFixed(2)}px) scale(${size})`);
    point.classList.toggle("active", n === active);
    point.classList.toggle("other", state.alone >= 0 && groups[n] !== state.alone);
    paint(point, groups[n]);
  });
  // The point that is looked at is kept above the others, which a pointer over it must not see moved.
  if (active >= 0 && state.hover < 0) svg.append(points[active]);
}

function drawChips(groups) {
  const sizes = new Map();
  for (const group of groups) sizes.set(group, (sizes.get(group) ?? 0) + 1);
  const made = [...sizes.keys()].sort((a, b) => a - b).map((group) => {
    const icon = drawing("svg", { width: 14, height: 14, viewBox: "-8 -8 16 16", "aria-hidden": "true" });
    icon.append(drawing("path", { d: SHAPES[group % SHAPES.length], class: "point" }));
    const chip = element("button", { class: "chip", type: "button", "aria-pressed": state.alone < 0 || state.alone === group,
      title: "shows it alone, or all again", onclick: () => alone(group) }, icon, `${nameOf(group)} (${sizes.get(group)})`);
    paint(chip, group);
    return chip;
  });
  const focused = [...chips.children].indexOf(document.activeElement);
  chips.replaceChildren(element("span", { class: "name" }, data.senses ? "Senses" : "Clusters"), ...made);
  if (focused >= 0) chips.children[focused]?.focus();
}

function sentence(n) {
  const { before, word, after } = data.texts[n];
  return element("span", {}, before, element("mark", {}, word), after);
}

function inform(active, groups) {
  if (active < 0) {
    const text = "Point at an occurrence, or choose one with j and k: its sentence appears here. A click keeps it.";
    return info.replaceChildren(element("p", {}, text));
  }
  const name = (n) => {
    const made = element("span", { class: "sense" }, nameOf(groups[n]));
    paint(made, groups[n]);
    return made;
  };
  const near = data.layers[state.layer].nearest[active].map(([other, cosine]) => element("tr", {},
    element("td", { class: "number" }, figure(cosine)), element("td", {}, name(other), " ", sentence(other))));
  info.replaceChildren(
    element("h2", {}, name(active), ` (occurrence ${active + 1} of ${count})`), element("p", { class: "sentence" }, sentence(active)),
    element("p", {}, "Nearest in this layer, by cosine:"), element("table", {}, element("tbody", {}, ...near)));
}

const KEYS = [
  [["↑", "↓"], "layer before, layer behind", true],
  [["j", "k"], "next, previous occurrence", true],
  [["s"], `next ${data.senses ? "sense" : "cluster"} alone; after the last one all`, true],
  [["Esc"], "look at none, show all", true],
  [["t"], "light or dark colours", true],
  [["Tab"], "next button, slider or picture", true],
  [["?"], "this list", true],
];

function nextGroup() {
  const all = [...new Set(groupsOf(state.layer))].sort((a, b) => a - b);
  const next = all[all.indexOf(state.alone) + 1];
  state.alone = next ?? -1;
  draw();
}

const ACTIONS = {
  ArrowUp: () => choose(state.layer - 1), ArrowDown: () => choose(state.layer + 1),
  j: () => step(1), k: () => step(-1), s: nextGroup,
  Escape: () => { state.alone = -1; pin(-1); },
};

build();
startPage(KEYS, draw, draw);
document.addEventListener("keydown", (event) => act(ACTIONS, event));
window.addEventListener("resize", draw);
draw();
// Points move from layer to layer, not to their first places.
requestAnimationFrame(() => requestAnimationFrame(() => svg.classList.add("moving")));
