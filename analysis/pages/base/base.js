// What every page has: its data, elements, light and dark colours, the list of its keys.

const data = JSON.parse(document.getElementById("data").textContent);
const root = document.documentElement;
const at = (id) => document.getElementById(id);

/** Makes an element: element("p", {class: "a"}, "text", child …). Text is never read as HTML. */
function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (value === true) made.setAttribute(key, "");
    else if (value !== false && value != null) made.setAttribute(key, value);
  }
  made.append(...children.filter((child) => child != null));
  return made;
}

/** A text with spaces, line ends and tabs drawn. */
function withSpacesDrawn(text) {
  return text.replace(/ /g, "␣").replace(/\n/g, "⏎").replace(/\t/g, "⇥").replace(/\r/g, "␍");
}

/** Such a text with what is drawn in a quiet colour. */
function marked(text) {
  return text.split(/([␣⏎⇥␍]+)/).filter(Boolean).map((part) =>
    /^[␣⏎⇥␍]/.test(part) ? element("span", { class: "space" }, part) : part);
}

const dark = () => root.dataset.theme === "dark";
const variable = (name) => getComputedStyle(root).getPropertyValue(name).trim();

/** Sizes a canvas in CSS pixels, sharp on its screen, and returns its context. */
function prepare(canvas, width, height) {
  const ratio = Math.min(window.devicePixelRatio || 1, 16000 / Math.max(height, 1), 3);
  canvas.width = Math.max(Math.round(width * ratio), 1);
  canvas.height = Math.max(Math.round(height * ratio), 1);
  canvas.style.height = `${height}px`;
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  return context;
}

/** The key of an event that a page may take; "" where a list, a dialog or the browser takes it. */
function keyOf(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || at("help").open) return "";
  if (event.target.closest?.("select, input[type=range]") && event.key.startsWith("Arrow")) return "";
  return event.key;
}

/** Runs the action of a key: {ArrowUp: () => …}. Returns whether there is one. */
function act(actions, event) {
  const action = { t: () => at("theme").click(), "?": help, ...actions }[keyOf(event)];
  if (!action) return false;
  action();
  event.preventDefault();
  return true;
}

function help() {
  if (at("help").open) at("help").close();
  else at("help").showModal();
}

/**
 * Writes title, notes and the list of keys, and follows the colours of the reader's system.
 * keys: [[key, …], what they do, whether the page has them]; redraw: draws in other colours; printing(begins).
 */
function startPage(keys, redraw, printing) {
  at("title").textContent = data.title;
  at("notes").textContent = data.notes;
  const rows = keys.filter(([, , fits]) => fits).map(([names, text]) => element("tr", {},
    element("td", {}, ...names.flatMap((key) => [element("kbd", {}, key), " "])), element("td", {}, text)));
  at("help").append(element("h2", {}, "Keys"), element("table", {}, element("tbody", {}, ...rows)),
    element("form", { method: "dialog" }, element("button", {}, "Close")));
  at("help-button").addEventListener("click", help);
  const paint = (theme) => {
    root.dataset.theme = theme;
    at("theme").textContent = theme === "dark" ? "Light" : "Dark";
    redraw();
  };
  at("theme").addEventListener("click", () => paint(dark() ? "light" : "dark"));
  const asked = window.matchMedia("(prefers-color-scheme: dark)");
  asked.addEventListener("change", () => paint(asked.matches ? "dark" : "light"));
  let before = "light";
  window.addEventListener("beforeprint", () => {
    before = root.dataset.theme;
    root.dataset.theme = "light";
    printing(true);
  });
  window.addEventListener("afterprint", () => {
    root.dataset.theme = before;
    printing(false);
  });
  root.dataset.theme = asked.matches ? "dark" : "light";
  at("theme").textContent = dark() ? "Light" : "Dark";
}
