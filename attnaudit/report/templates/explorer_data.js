// Reads the measurements: parts in base64 and raw DEFLATE, in this page or in files next to it. explorer_data.py
// writes them and describes their format.

const INVISIBLE = new RegExp("[\\0-\\x08\\x0b-\\x1f\\x7f-\\x9f\\xad\\u034f\\u061c\\u115f\\u1160\\u200b\\u200e\\u200f" +
  "\\u2028-\\u202e\\u2060-\\u206f\\u3164\\ud800-\\udfff\\ufeff\\uffa0\\ufff0-\\ufffb\\ufffe\\uffff" +
  "\\u{1bca0}-\\u{1bca3}\\u{1d173}-\\u{1d17a}\\u{e0000}-\\u{e00ff}\\u{e01f0}-\\u{e0fff}]", "gu");

// Replaces invisible characters with visible ones, as the rest of the report does.
function visible(text) {
  return text.replace(INVISIBLE, (character) => {
    const code = character.codePointAt(0);
    if (code < 0x20) return String.fromCharCode(0x2400 + code);
    return code === 0x7f ? "␡" : `⟨U+${code.toString(16).toUpperCase().padStart(4, "0")}⟩`;
  });
}

// Formats a number as the rest of the report does. Whole numbers have no decimals.
function number(value, { digits = 3, whole = false } = {}) {
  if (value === null || Number.isNaN(value)) return "—";
  const size = Math.abs(value);
  let text;
  if (whole || size >= 1000) text = Math.round(value).toLocaleString("en-US");
  else if (size && size < 0.5 * 10 ** -digits) text = value.toExponential(1);
  else text = value.toFixed(digits);
  return text.replace(/-/g, "−");
}

// Formats a number of an instance, whose accuracy the step of its measure limits.
function measured(entry, value) {
  const whole = entry.step === 1;
  return !whole && Math.abs(value) < Math.min(0.0005, 10 * entry.step) ? "≈ 0" : number(value, { whole });
}

function plural(count, noun) {
  return `${count.toLocaleString("en-US")} ${noun}${count === 1 ? "" : "s"}`;
}

async function inflated(base64) {
  const characters = atob(base64);
  const bytes = new Uint8Array(characters.length);
  for (let i = 0; i < characters.length; i++) bytes[i] = characters.charCodeAt(i);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

const asJson = (bytes) => JSON.parse(new TextDecoder().decode(bytes));

// The parts of a run by name. A file next to the page is a script, because a page that was opened as a file may not
// fetch one.
class Parts {
  constructor(manifest) {
    this.key = manifest.key;
    this.folder = manifest.folder;
    this.waiting = new Map();
    this.reading = new Map();
    window.attnauditPart = (key, name, base64) => {
      const wait = this.waiting.get(name);
      if (!wait) return;
      this.waiting.delete(name);
      if (key === this.key) wait.resolve(base64);
      else wait.reject(new Error(`${this.folder}/${name}.js belongs to another report. ` +
        "Build both again with `attnaudit report`."));
    };
  }

  // Reads a part. Calls for a part that is being read share the result.
  bytes(name) {
    if (!this.reading.has(name)) {
      this.reading.set(name, this.read(name).finally(() => this.reading.delete(name)));
    }
    return this.reading.get(name);
  }

  async read(name) {
    return inflated(this.folder ? await this.fromFile(name) : document.getElementById(`explorer-${name}`).textContent);
  }

  fromFile(name) {
    return new Promise((resolve, reject) => {
      this.waiting.set(name, { resolve, reject });
      const script = document.createElement("script");
      script.src = `${this.folder}/${name}.js`;
      script.onload = () => script.remove();
      script.onerror = () => {
        script.remove();
        this.waiting.delete(name);
        reject(new Error(`The file ${this.folder}/${name}.js is missing. ` +
          `Copy the folder ${this.folder} together with this page.`));
      };
      document.head.append(script);
    });
  }
}

const MOST_CACHED = 24;

// The measurements of one model on one data set. Rows are instances, numbered from 0.
class Case {
  constructor(description, parts) {
    Object.assign(this, description);
    this.parts = parts;
    this.joined = new Array(this.n);
    this.texts_read = new Map();
    this.cache = new Map();
    this.name = `${this.model} on ${this.data}`;
  }

  async load() {
    const index = asJson(await this.parts.bytes(`${this.prefix}-index`));
    this.ids = index.ids;
    this.label = index.label;
    this.labels = index.labels;
    this.predicted = index.predicted;
    this.classes = index.classes;
    this.lengths = index.lengths;
    this.confidence = Float64Array.from(index.confidence, (value) => (value === null ? NaN : value / 1e5));
    this.row_of = new Map(this.ids.map((id, row) => [id, row]));
    this.starts = new Uint32Array(this.n + 1);
    for (let row = 0; row < this.n; row++) this.starts[row + 1] = this.starts[row] + this.lengths[row];
  }

  labelOf(row) { return this.label[row] < 0 ? null : this.labels[this.label[row]]; }

  predictedOf(row) { return this.classes[this.predicted[row]]; }

  // Whether the label differs from the predicted class; null without a label.
  wrong(row) { return this.label[row] < 0 ? null : this.labelOf(row) !== this.predictedOf(row); }

  // Reads a part once. Only the parts that were used last are kept.
  cached(name, decode) {
    let found = this.cache.get(name);
    if (found) this.cache.delete(name);
    else found = this.parts.bytes(name).then(decode);
    this.cache.set(name, found);
    found.catch(() => this.cache.delete(name));
    if (this.cache.size > MOST_CACHED) this.cache.delete(this.cache.keys().next().value);
    return found;
  }

  block(starts, row) {
    let [low, high] = [0, starts.length - 1];
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (starts[middle] <= row) low = middle;
      else high = middle - 1;
    }
    return low;
  }

  async tokens(row) {
    const block = this.block(this.texts, row);
    const rows = await this.cached(`${this.prefix}-text${block}`, asJson);
    return rows[row - this.texts[block]];
  }

  // Reads one part with texts, so that `joined` has the texts of its rows.
  readTexts(block) {
    let done = this.texts_read.get(block);
    if (!done) {
      done = this.parts.bytes(`${this.prefix}-text${block}`).then((bytes) => {
        asJson(bytes).forEach((tokens, i) => { this.joined[this.texts[block] + i] = joinTokens(tokens); });
      });
      this.texts_read.set(block, done);
      done.catch(() => this.texts_read.delete(block));
    }
    return done;
  }

  // The values per token of one instance: for each column its largest absolute value and a Float32Array.
  async values(row) {
    if (!this.columns.length) return [];
    const block = this.block(this.value_starts, row);
    const bytes = await this.cached(`${this.prefix}-values${block}`, (content) => content);
    const first = this.value_starts[block];
    const last = block + 1 < this.value_starts.length ? this.value_starts[block + 1] : this.n;
    const tokens = this.starts[last] - this.starts[first];
    const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
    return this.columns.map((column, c) => {
      const offset = c * (4 * (last - first) + tokens);
      const scale = view.getFloat32(offset + 4 * (row - first), true);
      const codes = offset + 4 * (last - first) + this.starts[row] - this.starts[first];
      const values = Float32Array.from({ length: this.lengths[row] }, (_, i) => {
        const code = view.getInt8(codes + i);
        return code === -128 ? NaN : scale * code / 127;
      });
      return { column, scale, values };
    });
  }

  // The numbers of all instances for one entry of `numbers`.
  async numbersOf(entry) {
    if (!entry.part) return new Float64Array(this.n).fill(entry.lowest);
    const bytes = await this.cached(entry.part, (content) => content);
    const codes = new DataView(bytes.buffer, bytes.byteOffset + entry.offset, 2 * this.n);
    return Float64Array.from({ length: this.n }, (_, i) => {
      const code = codes.getUint16(2 * i, true);
      return code === 65535 ? NaN : entry.lowest + entry.step * code;
    });
  }

  // The entry of a measure under a reading. For a measure that does not depend on the reading, the entry names none.
  entry(measure, reading) {
    const entries = this.numbers.filter((one) => one.measure === measure);
    return entries.find((one) => one.reading === reading) || entries.find((one) => !one.reading) || entries[0];
  }
}

// The text of tokens, with parts of words joined where the tokenizer marks them.
function joinTokens(tokens) {
  if (tokens.some((token) => token.startsWith("▁") || token.startsWith("Ġ"))) {
    return tokens.join("").replace(/[▁Ġ]/g, " ").trim();
  }
  return tokens.join(" ").replace(/ ##/g, "");
}

// Creates an element. Text is only ever set as textContent.
function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "text") made.textContent = value;
    else if (value !== null && value !== false) made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children);
  return made;
}
