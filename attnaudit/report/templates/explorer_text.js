// Draws measures over the tokens of a text: one table per line, in which each column is a token and each row a measure.

const WHOLE = 150; // texts with at most this many tokens are shown in full
const WINDOW = 100; // of longer texts, this many tokens are shown at once
const NUMBERED = 3; // the largest values of a row are written into their cells
const LONGEST = 28;
const STRONG = 6; // the darkest tokens have at least this many times the share of equal values
const RIGHT_TO_LEFT = /[\u0591-\u07ff\ufb1d-\ufdfd\ufe70-\ufefc]/;

function tokenText(token) {
  const text = visible(token.replace(/\n/g, "⏎").replace(/\t/g, "⇥"));
  if (!text.trim()) return "␣".repeat(Math.max(1, Math.min(text.length, 3)));
  const characters = [...text];
  return characters.length > LONGEST ? `${characters.slice(0, LONGEST - 1).join("")}…` : text;
}

// The decimals that show two digits of the largest of some numbers, from 2 to 5.
function decimals(largest) {
  return largest > 0 ? Math.max(2, Math.min(5, 1 - Math.floor(Math.log10(largest)))) : 2;
}

// A number in a cell, without a leading zero.
function cellNumber(value, digits) {
  if (Number.isNaN(value)) return "";
  if (Math.abs(value) >= 10) return number(value, { digits: 0 });
  const text = value.toFixed(digits);
  return (Number(text) ? text : text.replace("-", "")).replace("0.", ".").replace("-", "−");
}

// The heat of each token, from 0 to 1: its share of the row, compared with the share that is drawn darkest. This is the
// scale of the rest of the report (see heatmaps.py).
function heats(values) {
  const sizes = Array.from(values, (value) => (Number.isNaN(value) ? 0 : Math.abs(value)));
  const darkest = sizes.reduce((sum, size) => sum + size, 0) * Math.min(1, STRONG / sizes.length);
  return sizes.map((size) => (darkest ? Math.min(1, size / darkest) : 0));
}

function capitalised(name) {
  return name[0].toUpperCase() + name.slice(1);
}

// One text with its rows. `names` has the names of its units. Each row has a name, a short name, a model (or ""), a kind, a scale (its largest absolute
// value) and values (one per token).
class TextView {
  constructor(box, { tokens, rows, names, start, onWindow }) {
    Object.assign(this, { box, tokens, rows, names, onWindow });
    this.heat = rows.map((row) => heats(row.values));
    this.digits = rows.map((row) => decimals(row.scale));
    this.numbered = rows.map((row) => new Set([...row.values.keys()].filter((i) => Math.abs(row.values[i]) > 0)
      .sort((a, b) => Math.abs(row.values[b]) - Math.abs(row.values[a])).slice(0, NUMBERED)));
    this.folded = tokens.length > WHOLE;
    this.start = this.folded ? Math.max(0, Math.min(tokens.length - WINDOW, start ?? this.aroundLargest())) : 0;
    this.current = this.start;
    this.lines = element("div", { class: "lines" });
    this.readout = element("p", { class: "readout", "aria-live": "polite" });
    const written = tokens.filter((token) => /\p{L}/u.test(token));
    this.rtl = written.filter((token) => RIGHT_TO_LEFT.test(token)).length > written.length / 2;
    this.lines.addEventListener("pointermove", (event) => this.read(event.target.closest("[data-i]")));
    this.lines.addEventListener("focusin", (event) => this.read(event.target.closest("[data-i]")));
    this.lines.addEventListener("click", (event) => {
      const cell = event.target.closest("[data-i]");
      if (cell) this.focus(Number(cell.dataset.i));
    });
    this.lines.addEventListener("keydown", (event) => this.key(event));
    box.replaceChildren(...(this.folded ? [this.overview()] : []), this.lines, this.readout);
    this.draw();
  }

  aroundLargest() {
    const values = this.rows.length ? this.rows[0].values : [];
    let best = 0;
    values.forEach((value, i) => { if (value > values[best] || Number.isNaN(values[best])) best = i; });
    return best - WINDOW / 2;
  }

  // The whole text as a strip with one line per row, and a slider that moves the window over it.
  overview() {
    this.canvas = element("canvas", { class: "overview", height: 9 * this.rows.length, "aria-hidden": "true" });
    this.slider = element("input", { type: "range", min: 0, max: this.tokens.length - WINDOW, value: this.start,
      "aria-label": `Part of the ${this.names.row} that is shown` });
    this.slider.addEventListener("input", () => this.move(Number(this.slider.value)));
    this.canvas.addEventListener("click", (event) => {
      const share = event.offsetX / this.canvas.clientWidth;
      this.move(Math.round(share * this.tokens.length - WINDOW / 2));
    });
    this.where = element("p", { class: "fine" });
    const all = element("button", { type: "button", text: `Show all ${this.tokens.length.toLocaleString("en-US")} ${this.names.units}` });
    all.addEventListener("click", () => { this.folded = false; all.remove(); this.slider.remove(); this.draw(); });
    return element("div", { class: "folded" }, this.canvas, this.slider, element("div", { class: "where" }, this.where, all));
  }

  move(start) {
    this.start = Math.max(0, Math.min(this.tokens.length - WINDOW, start));
    this.current = this.start;
    this.slider.value = this.start;
    this.onWindow(this.start);
    this.draw();
  }

  shown() {
    return this.folded ? [this.start, this.start + WINDOW] : [0, this.tokens.length];
  }

  drawOverview() {
    const width = Math.max(1, Math.min(2000, this.canvas.clientWidth * devicePixelRatio));
    this.canvas.width = width;
    const brush = this.canvas.getContext("2d");
    const style = getComputedStyle(this.canvas);
    const [first, last] = this.shown();
    const x = (i) => (i / this.tokens.length) * width;
    this.rows.forEach((row, r) => {
      const hue = style.getPropertyValue(`--${row.kind}`);
      const column = Math.max(1, width / this.tokens.length);
      const most = new Float32Array(Math.ceil(width) + 1);
      this.heat[r].forEach((heat, i) => { most[Math.floor(x(i))] = Math.max(most[Math.floor(x(i))], heat); });
      most.forEach((heat, pixel) => {
        if (heat <= 0.02) return;
        brush.fillStyle = `rgba(${hue}, ${heat})`;
        brush.fillRect(pixel, 9 * r, column, 8);
      });
    });
    brush.strokeStyle = style.color;
    brush.lineWidth = 2;
    brush.strokeRect(x(first) + 1, 1, x(last) - x(first) - 2, this.canvas.height - 2);
    this.where.textContent = `${capitalised(this.names.units)} ${(first + 1).toLocaleString("en-US")} to ${last.toLocaleString("en-US")} of ` +
      `${this.tokens.length.toLocaleString("en-US")}. The strip shows the whole ${this.names.row}, one line per row below.`;
  }

  // Splits the tokens in view into lines that fit the width, and draws a table for each.
  draw() {
    if (this.canvas) this.drawOverview();
    const style = getComputedStyle(this.lines);
    const ruler = document.createElement("canvas").getContext("2d");
    ruler.font = `${style.fontSize} ${style.fontFamily}`;
    const label = parseFloat(style.getPropertyValue("--label"));
    const room = Math.max(120, this.lines.clientWidth - label - 2);
    const [first, last] = this.shown();
    const lines = [];
    let line = [];
    let used = 0;
    for (let i = first; i < last; i++) {
      const text = tokenText(this.tokens[i]);
      const width = Math.min(room, Math.max(34, Math.ceil(ruler.measureText(text).width) + 12));
      if (used + width > room && line.length) {
        lines.push(line);
        [line, used] = [[], 0];
      }
      line.push({ i, text, width });
      used += width;
    }
    if (line.length) lines.push(line);
    this.lines.replaceChildren(...lines.map((one) => this.table(one)));
    this.read(this.cell(this.current));
  }

  table(line) {
    const [first, last] = [line[0].i + 1, line.at(-1).i + 1];
    const head = element("tr", {}, element("td", { class: "corner" }));
    for (const { i, text, width } of line) {
      const token = element("th", { scope: "col", "data-i": i, tabindex: i === this.current ? 0 : -1 },
        element("bdi", { text }));
      token.style.width = `${width}px`;
      head.append(token);
    }
    const body = this.rows.map((row, r) => {
      const name = element("th", { scope: "row", title: row.name }, element("span", { text: row.short }));
      if (row.model) name.append(element("small", { text: row.model }));
      const cells = line.map(({ i }) => {
        const value = row.values[i];
        const cell = element("td", { "data-i": i, text: cellNumber(value, this.digits[r]),
          class: this.numbered[r].has(i) ? null : "minor" });
        if (this.heat[r][i] > 0.02) cell.style.setProperty("--h", this.heat[r][i].toFixed(3));
        if (value < 0) cell.classList.add("neg");
        return cell;
      });
      return element("tr", { class: row.kind }, name, ...cells);
    });
    return element("table", { class: "gloss", dir: this.rtl ? "rtl" : "ltr",
      "aria-label": `Tokens ${first} to ${last}` }, element("thead", {}, head), element("tbody", {}, ...body));
  }

  cell(i) { return this.lines.querySelector(`th[data-i="${i}"]`); }

  // Writes all values of a token below the text.
  read(cell) {
    if (!cell) return;
    const i = Number(cell.dataset.i);
    for (const marked of this.lines.querySelectorAll(".current")) marked.classList.remove("current");
    for (const marked of this.lines.querySelectorAll(`[data-i="${i}"]`)) marked.classList.add("current");
    const values = this.rows.map((row) => `${row.name}${row.model ? ` (${row.model})` : ""} ${number(row.values[i])}`);
    const token = element("b");
    token.append(element("bdi", { text: visible(this.tokens[i].slice(0, 200)) || "␣" }));
    this.readout.replaceChildren(`${capitalised(this.names.unit)} ${i + 1} of ${this.tokens.length} `, token, `: ${values.join("; ")}`);
  }

  focus(i) {
    this.current = i;
    for (const token of this.lines.querySelectorAll("th[tabindex='0']")) token.tabIndex = -1;
    const token = this.cell(i);
    token.tabIndex = 0;
    token.focus({ preventScroll: false });
  }

  key(event) {
    const forward = this.rtl ? "ArrowLeft" : "ArrowRight";
    const back = this.rtl ? "ArrowRight" : "ArrowLeft";
    const at = event.target.closest("th[data-i]");
    if (!at || ![forward, back].includes(event.key) || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    const next = Number(at.dataset.i) + (event.key === forward ? 1 : -1);
    if (next < 0 || next >= this.tokens.length) return;
    const [first, last] = this.shown();
    if (next < first || next >= last) this.move(next - (event.key === forward ? 0 : WINDOW - 1));
    this.focus(next);
  }
}
