// What is shown, and the arrays of the page: read when they are first needed, a layer at a time.

const count = data.tokens.length;
const state = {
  view: data.views[0],
  layer: 0, // its place among data.layers
  heads: (data.heads ?? []).map((_, place) => place === 0), // which heads are shown
  side: "query", // the column of the token that is looked at
  hover: -1, // the token under the mouse
  pinned: -1, // the token that was chosen by a click or a key
  hidden: new Set(), // names of the groups of tokens that are left out
};

const written = (place) => withSpacesDrawn(data.tokens[place]);
const current = () => (state.hover >= 0 ? state.hover : state.pinned);
const shownHeads = () => state.heads.flatMap((shown, place) => (shown ? [place] : []));
const firstHead = () => Math.max(state.heads.indexOf(true), 0);
const excluded = new Uint8Array(count);

/** Groups of tokens that can be hidden: {"[CLS]": [0], …}. */
const groups = new Map(Object.entries(data.groups ?? {}));

function exclude() {
  excluded.fill(0);
  for (const name of state.hidden) for (const place of groups.get(name)) excluded[place] = 1;
}

// Arrays: base64 of deflated bytes, in a script element of their own.

async function bytesOf(id) {
  const text = document.getElementById(id).textContent;
  const packed = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

/** 16-bit numbers, of which the low bytes stand before the high ones: so they are deflated better. */
async function numbersOf(id) {
  const bytes = await bytesOf(id);
  const half = bytes.length / 2;
  const numbers = new Uint16Array(half);
  for (let n = 0; n < half; n++) numbers[n] = bytes[n] | (bytes[half + n] << 8);
  return numbers;
}

function fromFloat16(bits) {
  const sign = bits & 0x8000 ? -1 : 1;
  const exponent = (bits >> 10) & 31;
  const fraction = bits & 1023;
  return sign * (exponent ? 2 ** (exponent - 15) * (1 + fraction / 1024) : 2 ** -24 * fraction);
}

const kept = new Map();

/** Reads an array once; the few that were used last are kept. */
function remember(id, read, most) {
  if (!kept.has(id)) kept.set(id, read());
  const promise = kept.get(id);
  kept.delete(id);
  kept.set(id, promise);
  const same = [...kept.keys()].filter((other) => other.split("-")[0] === id.split("-")[0]);
  if (same.length > most) kept.delete(same[0]);
  return promise;
}

/** The weights of a layer, as whole numbers of 10^-decimals: [head, query, key]. */
function weightsOf(layer) {
  const id = `weights-${data.layers[layer]}`;
  return remember(id, () => numbersOf(id), count > 600 ? 2 : 6);
}

/** {queries, keys} of a layer, [head, token, K] each; null where the page has none. */
function neuronsOf(layer) {
  const number = data.layers[layer];
  if (!data.neurons.includes(number)) return Promise.resolve(null);
  const id = `neurons-${number}`;
  return remember(id, async () => {
    const numbers = Float32Array.from(await numbersOf(id), fromFloat16);
    return { queries: numbers.subarray(0, numbers.length / 2), keys: numbers.subarray(numbers.length / 2) };
  }, 3);
}

const unit = 10 ** -(data.decimals ?? 3);
const shown = (weight) => weight.toFixed(Math.max(data.decimals ?? 3, 3));
const percent = (share) => `${(100 * share).toFixed(1)} %`;

/** Whether a query sees a key: causal models none behind it, banded layers the last few. */
function sees(query, key) {
  if (!data.causal) return true;
  const window = data.windows[state.layer];
  return key <= query && (!window || key > query - window);
}

/** The mean share of attention that the queries of `from` give to the keys of `to`. */
function share(weights, head, from, to) {
  let sum = 0;
  for (const query of from) {
    const row = (head * count + query) * count;
    for (const key of to) sum += weights[row + key];
  }
  return from.length ? (sum * unit) / from.length : 0;
}

// Colours

const headCount = data.headCount ?? 6;
const stride = [0.382, 0.3, 0.45, 0.2, 0].map((part) => Math.max(Math.round(part * headCount), 1))
  .find((step) => gcd(step, headCount) === 1) ?? 1;

function gcd(a, b) {
  return b ? gcd(b, a % b) : a;
}

/** The colour of a head: neighbours differ much, and each is readable on its theme's paper. */
function colour(place, alpha = 1) {
  const hue = (210 + (360 * ((((data.heads?.[place] ?? place + 1) - 1) * stride) % headCount)) / headCount) % 360;
  const light = dark() ? 68 : hue > 40 && hue < 200 ? 34 : 44;
  return `hsl(${hue.toFixed(0)} 70% ${light}% / ${alpha})`;
}
