// The page: views, controls, keys, colours, print.

const VIEWS = { head: ["Heads", HeadView], model: ["Model", ModelView], neuron: ["Neurons", NeuronView],
                gates: ["Gates", GatesView], mix: ["Layer weights", MixView] };
const made = {};

function show(name) {
  state.view = name;
  if (name === "neuron") state.side = "query";
  made[name] ??= new VIEWS[name][1]();
  at("view").replaceChildren(...made[name].elements);
  refresh();
}

function choose(layer, head) {
  state.layer = Math.min(Math.max(layer, 0), data.layers.length - 1);
  if (head != null) state.heads = state.heads.map((_, place) => place === head);
  refresh();
}

/** Looks at a token: under the mouse, or kept by a click or a key. */
function look(side, place, pin) {
  if (state.view === "neuron" && side === "key") return;
  if (pin) {
    const again = place === state.pinned && side === state.side;
    state.pinned = again && state.view !== "neuron" ? -1 : place;
    state.hover = -1;
    if (place >= 0) state.side = side;
  } else {
    // The neuron view follows clicks: a query that changed with each move of the mouse could not be looked at.
    if (state.view === "neuron") return;
    if (place === state.hover && (place < 0 || side === state.side)) return;
    state.hover = place;
    if (place >= 0) state.side = side;
  }
  made[state.view]?.update();
}

async function refresh() {
  exclude();
  controls();
  const showing = made[state.view];
  await showing.update();
  await status();
  root.dataset.drawn = `${state.view} ${data.layers[state.layer]} ${shownHeads().map((head) => data.heads[head])}`;
}

// Controls

let layerSelect, chips = [], boxes = [];

function build() {
  for (const name of data.views)
    at("views").append(element("button", { type: "button", role: "tab", id: `tab-${name}`, onclick: () => show(name) }, VIEWS[name][0]));
  layerSelect = element("select", { id: "layer", "aria-label": "Layer", onchange: () => choose(layerSelect.selectedIndex) },
    ...data.layers.map((layer) => element("option", {}, `${layer}`)));
  at("controls").append(element("span", { class: "group" }, element("span", { class: "name" }, "Layer"), layerSelect));
  chips = (data.heads ?? []).map((head, place) => element(
    "button",
    {
      class: "chip", type: "button", title: `head ${head}: click shows or hides it, with Shift it alone`,
      onclick: (event) => toggle(place, event.shiftKey),
    },
    element("span", { class: "dot" }), `${head}`,
  ));
  if (chips.length) {
    const all = element("button", { type: "button", onclick: everyHead, title: "all heads, or the first alone (a)" }, "all");
    at("controls").append(element("span", { class: "group" }, element("span", { class: "name" }, "Heads"), ...chips, all));
  }
  boxes = [...groups.keys()].map((name) => {
    const box = element("input", { type: "checkbox", "data-group": name, onchange: () => hide(name, box.checked) });
    return { name, box, share: element("span", {}) };
  });
  if (boxes.length) at("controls").append(element("span", { class: "group" }, element("span", { class: "name" }, "Hide"),
    ...boxes.map(({ name, box, share }) => element("label", {}, box, `${name} `, share))));
}

function toggle(place, alone) {
  if (alone || state.view === "neuron") state.heads = state.heads.map((_, other) => other === place);
  else state.heads[place] = !state.heads[place];
  refresh();
}

function everyHead() {
  const every = state.heads.every(Boolean);
  state.heads = state.heads.map((_, place) => (every ? place === 0 : true));
  refresh();
}

function hide(name, hidden) {
  if (hidden) state.hidden.add(name);
  else state.hidden.delete(name);
  refresh();
}

function controls() {
  for (const name of data.views) at(`tab-${name}`).setAttribute("aria-selected", name === state.view);
  layerSelect.selectedIndex = state.layer;
  chips.forEach((chip, place) => {
    const single = state.view === "neuron" || state.view === "model";
    chip.style.setProperty("--head", colour(place));
    chip.setAttribute("aria-pressed", single ? place === firstHead() : state.heads[place]);
  });
  for (const { name, box } of boxes) box.checked = state.hidden.has(name);
}

/** Says how much attention the groups that can be hidden take, in this layer's heads. */
async function status() {
  if (!groups.size) return;
  const layer = state.layer, weights = await weightsOf(layer);
  if (layer !== state.layer) return;
  const heads = state.view === "head" ? shownHeads() : [firstHead()];
  const every = data.tokens.map((_, place) => place);
  const mean = (to) => {
    const out = new Set(to), from = every.filter((place) => !out.has(place));
    return heads.length ? heads.reduce((sum, head) => sum + share(weights, head, from, to), 0) / heads.length : 0;
  };
  for (const { name, share: text } of boxes) text.textContent = `(${percent(mean(groups.get(name)))})`;
  const taken = every.filter((place) => excluded[place]);
  const which = heads.length === 1 ? `head ${data.heads[heads[0]]}` : `the ${heads.length} heads shown`;
  const place = `in layer ${data.layers[layer]}, ${which}`;
  at("status").textContent = taken.length
    ? `Hidden: ${[...state.hidden].join(", ")}, with ${percent(mean(taken))} of the attention of all other tokens ${place}. The rest is drawn.`
    : `In brackets: the share of the attention that they take from all other tokens ${place}.`;
}

// Keys

const maps = data.views.includes("head");
const KEYS = [
  [[...data.views.keys()].map((n) => `${n + 1}`), `views: ${data.views.map((name) => VIEWS[name][0]).join(", ")}`, data.views.length > 1],
  [["↑", "↓"], "layer before, layer behind", true],
  [["←", "→"], "head before, head behind", maps],
  [["a"], "all heads, or the first alone", maps],
  [["j", "k"], `next, previous ${maps ? "token" : "word"}`, true],
  [["o"], "the token on the other side: what reads it", maps],
  [["s"], "hide or show the tokens that can be hidden", groups.size > 0],
  [["Enter"], "in the model view: open the head", maps],
  [["Esc"], "look at no token", true],
  [["t"], "light or dark colours", true],
  [["Tab"], "next button, list or picture", true],
  [["?"], "this list", true],
];

function step(by) {
  const now = state.pinned >= 0 ? state.pinned : by > 0 ? -1 : count;
  state.pinned = Math.min(Math.max(now + by, 0), count - 1);
  state.hover = -1;
  made[state.view].columns?.reveal(state.pinned);
  made[state.view].rows?.[state.pinned]?.scrollIntoView?.({ block: "nearest" });
  made[state.view].update();
}

function key(event) {
  const actions = {
    ArrowUp: () => choose(state.layer - 1), ArrowDown: () => choose(state.layer + 1),
    ArrowLeft: () => beside(-1), ArrowRight: () => beside(1),
    j: () => step(1), k: () => step(-1), a: () => maps && everyHead(),
    o: () => { state.side = state.side === "query" ? "key" : "query"; made[state.view].update(); },
    s: () => { state.hidden = new Set(state.hidden.size ? [] : groups.keys()); refresh(); },
    Escape: () => { state.pinned = state.hover = -1; made[state.view].update(); },
  };
  data.views.forEach((name, place) => (actions[place + 1] = () => show(name)));
  if (act(actions, event) && event.key.startsWith("Arrow")) made[state.view].focus?.();
}

function beside(by) {
  if (maps) choose(state.layer, Math.min(Math.max(firstHead() + by, 0), data.heads.length - 1));
}

// Colours and print

function print(printing) {
  controls();
  made[state.view]?.columns?.print(printing);
  refresh();
}

startPage(KEYS, () => made[state.view] && refresh(), print);
window.addEventListener("resize", () => made[state.view].update());
document.addEventListener("keydown", key);
build();
show(state.view);
