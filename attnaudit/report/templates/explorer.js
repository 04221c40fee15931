// The instance explorer: connects the controls, the list and the opened instance.

const root = document.getElementById("explorer");
const find = (selector) => root.querySelector(selector);
const control = (name) => find(`[name=${name}]`);
const FILTERS = ["search", "wrong", "class", "confidence", "length", "worst", "sort"];
const SHOWN_AT_FIRST = ["attention", "gradient.meister.inputs", "leave_one_out.inputs", "token_effect.held"];

function fill(select, options) {
  select.replaceChildren(...options.map(([value, text]) => element("option", { value, text })));
}

class Explorer {
  constructor(manifest, parts) {
    this.unit = manifest.unit;
    this.names = manifest.names;
    this.cases = manifest.cases.map((one) => new Case(one, parts));
    this.ready = new Map();
    this.turn = 0;
    this.opening = 0;
    this.opened = null; // the row that is open
    this.hidden = null; // the measures whose rows are not shown
    this.epsilon = 0;
    this.list = new RowList(find(".list"), {
      onOpen: (row) => this.go(row),
      describe: (row, drawn) => this.describe(row, drawn),
    });
  }

  // Reads the list of a case, once.
  load(one) {
    if (!this.ready.has(one)) this.ready.set(one, one.load());
    return this.ready.get(one);
  }

  async start() {
    fill(control("case"), this.cases.map((one, i) => [i, visible(this.nameOf(one))]));
    find(".model").hidden = this.cases.length < 2;
    await this.choose(this.cases[0]);
    this.listen();
    await this.follow();
  }

  nameOf(one) {
    return this.cases.some((other) => other !== one && other.name === one.name) ? `${one.name}, seed ${one.seed}` : one.name;
  }

  // Shows the list of a case with the filters set to all.
  async choose(one) {
    await this.load(one);
    this.one = one;
    control("case").value = this.cases.indexOf(one);
    const others = this.cases.filter((other) => other !== one && other.data === one.data);
    await Promise.all(others.map((other) => this.load(other)));
    this.other = others[0] || null;
    fill(control("compare"), [["", "nothing"], ...others.map((other) => [this.cases.indexOf(other), visible(this.nameOf(other))])]);
    control("compare").value = this.other ? this.cases.indexOf(this.other) : "";
    find(".compare").hidden = !others.length;
    find(".disagree").hidden = !others.length;
    const names = (prefix, word, all) => all.map((name) => [`${prefix}${name}`, `${word} ${visible(name)}`]);
    fill(control("class"), [["", "all"], ...names("p", "predicted", one.classes), ...names("l", "label", one.labels)]);
    control("confidence").parentElement.hidden = one.confidence.every(Number.isNaN);
    const long = longFrom(one.lengths);
    fill(control("length"), [["", "all"], ["long", `long: ${long} ${this.unit} or more`],
      ["short", `shorter than ${long} ${this.unit}`]]);
    fill(control("worst"), [["", "all"], ...one.checks.map((check, i) =>
      [i, visible(`${check.gate ? "gate" : "informational"}: ${check.title}`)])]);
    fill(control("sort"), [["", "order of the file"], ["confidence", "confidence"], ["length", `number of ${this.unit}`],
      ...sortNames(one).map((name) => [`=${name}`, visible(name)])]);
    const readings = one.columns.filter((column) => column.measure === "attention").map((column) => column.reading);
    const own = one.checks.map((check) => check.reading).find((reading) => readings.includes(reading));
    this.reading = own ?? readings[0] ?? "";
    this.epsilons = [...new Set(one.columns.filter((c) => c.epsilon !== undefined).map((c) => c.epsilon))].sort((a, b) => a - b);
    this.epsilon = Math.min(this.epsilon, Math.max(0, this.epsilons.length - 1));
    this.hidden = null;
    this.reset();
  }

  reset() {
    return this.filter(new Map());
  }

  // Sets the filters in `named`, and all other filters to "all".
  filter(named) {
    for (const name of FILTERS) control(name).value = named.get(name) ?? "";
    control("order").value = named.get("order") ?? "up";
    control("disagree").checked = false;
    return this.update();
  }

  // Applies the filters and the order. A later call cancels an earlier one that still reads data.
  async update() {
    const turn = ++this.turn;
    const one = this.one;
    const filters = Object.fromEntries(["search", "wrong", "class", "confidence", "length", "worst"]
      .map((name) => [name, control(name).value]));
    filters.disagree = control("disagree").checked && this.other;
    try {
      if (filters.search.trim()) {
        for (let block = 0; block < one.texts.length; block++) {
          if (turn !== this.turn) return;
          if (block % 8 === 0 && !one.texts_read.has(block)) {
            this.say(`Reading the ${this.names.rows}: ${Math.round((100 * block) / one.texts.length)}%`);
          }
          await one.readTexts(block);
        }
      }
      const sort = filters.worst === "" ? control("sort").value : control("sort").value || "worst";
      this.sorted = sort ? await sortNumbers(one, sort, this.reading, filters.worst) : null;
      if (turn !== this.turn) return;
      this.sort = sort;
      const rows = filtered(one, filters, this.other);
      if (sort) sortRows(rows, this.sorted, control("order").value === "down");
      this.list.show(rows, this.opened === null ? undefined : this.opened);
      find(".list-head .last").textContent = this.sortedName();
      this.say(rows.length === one.n ? `${plural(one.n, "instance")}`
        : `${rows.length.toLocaleString("en-US")} of ${plural(one.n, "instance")}`);
    } catch (error) {
      this.fail(error);
    }
  }

  say(text) {
    find(".status").classList.remove("error");
    find(".status").textContent = text;
  }

  fail(error) {
    find(".status").classList.add("error");
    find(".status").textContent = error.message;
  }

  // The cells of a row of the list.
  describe(row, drawn) {
    const one = this.one;
    const text = one.joined[row];
    if (text === undefined) one.readTexts(one.block(one.texts, row)).then(drawn, (error) => this.fail(error));
    const label = one.labelOf(row);
    const classes = element("span", { class: "classes" }, visible(one.predictedOf(row) || "—"));
    if (one.wrong(row)) classes.append(", ", element("em", { text: visible(`label ${label}`) }));
    return [
      element("span", { class: "id" }, element("bdi", { text: visible(one.ids[row]) })),
      element("span", { class: "text", dir: "auto", text: text === undefined ? "…" : visible(text.slice(0, 300)) }),
      classes,
      element("span", { class: "number", "aria-label": `confidence ${number(one.confidence[row])}`, text: number(one.confidence[row]) }),
      element("span", { class: "number", text: this.sortedText(row) }),
    ];
  }

  // The value that the list is sorted by. Without one, the number of tokens.
  sortedText(row) {
    if (this.sort === "worst") {
      return number(this.one.checks[control("worst").value].worst.find(([other]) => other === row)[1]);
    }
    if (this.sort && this.sort.startsWith("=")) {
      return measured(this.one.entry(this.sort.slice(1), this.reading), this.sorted[row]);
    }
    return `${this.one.lengths[row].toLocaleString("en-US")} ${this.unit}`;
  }

  sortedName() {
    if (this.sort === "worst") return "value";
    if (!this.sort || !this.sort.startsWith("=")) return "length";
    const entry = this.one.entry(this.sort.slice(1), this.reading);
    return fullName(entry.measure, entry.reading);
  }

  // The permanent link of a row.
  link(row) {
    const parts = [["instance", this.one.ids[row]]];
    if (this.cases.length > 1) parts.push(["model", this.one.model], ["data", this.one.data], ["seed", this.one.seed]);
    return `#${parts.map(([name, value]) => `${name}=${encodeURIComponent(value)}`).join("&")}`;
  }

  // Opens a row through its link, so that it can be shared, and so that "back" closes it again.
  go(row) {
    if (row === undefined) return;
    this.focusOpened = true;
    if (location.hash === this.link(row)) this.follow();
    else location.hash = this.link(row);
  }

  // Opens the instance that the address names.
  async follow() {
    const named = new Map(location.hash.slice(1).split("&").map((part) => {
      const [name, value = ""] = part.split("=");
      try { return [name, decodeURIComponent(value)]; } catch { return [name, value]; }
    }));
    const fits = (one) => ["model", "data", "seed"].every((key) => !named.has(key) || String(one[key]) === named.get(key));
    if (!named.has("instance")) {
      if (named.has("explorer")) await this.explore(named, this.cases.find(fits));
      return;
    }
    const id = named.get("instance");
    for (const one of this.cases.filter(fits)) {
      await this.load(one);
      const row = one.row_of.get(id) ?? one.ids.findIndex((other) => visible(other) === id);
      if (row < 0) continue;
      if (one !== this.one) await this.choose(one);
      return this.open(row);
    }
    this.fail(new Error(`This run has no instance ${visible(id)}.`));
    root.scrollIntoView();
  }

  // Goes to the list. An address such as #explorer&wrong=wrong also sets the filters.
  async explore(named, one) {
    if (FILTERS.some((name) => named.has(name))) {
      if (one && one !== this.one) await this.choose(one);
      await this.filter(named);
    }
    root.scrollIntoView();
    find(".list").focus({ preventScroll: true });
  }

  async open(row) {
    const opening = ++this.opening;
    const focus = this.focusOpened;
    this.focusOpened = false;
    this.opened = row;
    const place = this.list.rows.indexOf(row);
    if (place >= 0) this.list.activate(place);
    find(".opened").hidden = false;
    try {
      await this.show(row, opening);
    } catch (error) {
      this.fail(error);
      find("#explorer-instance").textContent = visible(this.one.ids[row]);
      find(".texts").replaceChildren(element("p", { class: "none", text: error.message }));
    }
    if (opening !== this.opening) return;
    if (focus) find("#explorer-instance").focus({ preventScroll: true });
    const box = find(".opened").getBoundingClientRect();
    if (box.top < 0 || box.top > innerHeight - 260) find(".opened").scrollIntoView({ block: "nearest" });
    if (!focus || box.top > innerHeight - 260) find(".opened").scrollIntoView({ block: focus ? "center" : "start" });
  }

  close() {
    this.opened = null;
    this.opening++;
    find(".opened").hidden = true;
    history.replaceState(null, "", "#explorer");
    find(".list").focus();
  }

  // Opens the previous or next row of the list.
  step(change) {
    const place = this.list.rows.indexOf(this.opened);
    const next = this.list.rows[place < 0 ? this.list.active : place + change];
    if (next !== undefined) this.go(next);
  }

  async show(row, opening) {
    const one = this.one;
    const shown = [one];
    if (this.other && this.other.row_of.has(one.ids[row])) shown.push(this.other);
    const views = await Promise.all(shown.map(async (each) => {
      const there = each.row_of.get(one.ids[row]);
      return { each, there, tokens: await each.tokens(there), ...(await rowsOf(each, there, this.reading, this.epsilons[this.epsilon])) };
    }));
    const facts = await Promise.all(views.map(({ each, there }) =>
      factsOf(each, there, this.unit, views.length > 1 ? this.nameOf(each) : "")));
    if (opening !== this.opening) return;
    find("#explorer-instance").replaceChildren(element("bdi", { text: visible(one.ids[row]) }));
    find(".facts-line").replaceChildren(...facts.flat());
    this.views = views;
    this.chooseRows(views);
    this.drawSettings(one, views[0]);
    this.drawTexts();
    find(".heads").replaceChildren(...headMatrices(views[0], this));
    find(".all-numbers").open = false;
    await this.drawAdversary(views[0], opening);
  }

  // The choice of the rows that are shown. At first these are one per kind.
  chooseRows(views) {
    const measures = new Map(views.flatMap((view) => view.rows).map((row) =>
      [row.kind === "adversarial" ? "adversarial" : row.measure, row]));
    if (!this.hidden) {
      const kinds = new Set();
      this.hidden = new Set([...measures].filter(([name, row]) => {
        const first = SHOWN_AT_FIRST.includes(name) || name === "adversarial" ||
          (!kinds.has(row.kind) && row.kind !== "other" && ![...measures.keys()].some((other) =>
            SHOWN_AT_FIRST.includes(other) && measures.get(other).kind === row.kind));
        kinds.add(row.kind);
        return !first;
      }).map(([name]) => name));
    }
    const choices = [...measures].map(([name, row]) => {
      const box = element("input", { type: "checkbox" });
      box.checked = !this.hidden.has(name);
      box.addEventListener("change", () => {
        if (box.checked) this.hidden.delete(name);
        else this.hidden.add(name);
        this.drawTexts();
      });
      const text = name === "adversarial" ? "Adversarial attention" : row.title;
      return element("label", { class: "check-box" }, box, element("span", { text: visible(text) }));
    });
    find(".choices").replaceChildren(...choices);
  }

  drawSettings(one, view) {
    const readings = one.columns.filter((column) => column.measure === "attention").map((column) => column.reading);
    find(".reading").hidden = readings.length < 2;
    fill(control("reading"), readings.map((reading) => [reading, visible(reading || "the model's own reading")]));
    control("reading").value = view.used;
    find(".epsilon").hidden = !view.rows.some((row) => row.kind === "adversarial");
    control("epsilon").max = Math.max(0, this.epsilons.length - 1);
    control("epsilon").value = this.epsilon;
    control("epsilon").disabled = this.epsilons.length < 2;
    this.writeEpsilon();
  }

  writeEpsilon() {
    const text = this.epsilons.length ? `TVD ${this.epsilons[this.epsilon]}` : "";
    find(".epsilon output").textContent = text;
    control("epsilon").setAttribute("aria-valuetext", text);
  }

  // Draws the text under both models in one table if they have the same tokens, and in two otherwise.
  drawTexts() {
    const shown = (view) => view.rows.filter((row) => !this.hidden.has(row.kind === "adversarial" ? "adversarial" : row.measure));
    const several = this.views.length > 1;
    const [first, second] = this.views;
    const same = several && JSON.stringify(first.tokens) === JSON.stringify(second.tokens);
    const named = (view) => shown(view).map((row) => ({ ...row, model: several ? visible(view.each.model) : "" }));
    const texts = same ? [{ tokens: first.tokens, rows: [...named(first), ...named(second)], title: "" }]
      : this.views.map((view) => ({ tokens: view.tokens, rows: named(view), title: several ? this.nameOf(view.each) : "" }));
    if (same) {
      const order = [...first.rows, ...second.rows].map((row) => row.measure);
      texts[0].rows.sort((a, b) => order.indexOf(a.measure) - order.indexOf(b.measure));
    }
    const boxes = texts.map(({ title }) => element("div", {}, ...(title ? [element("h4", { text: visible(title) })] : [])));
    find(".texts").replaceChildren(...boxes);
    this.texts = texts.map((text, i) => {
      const box = element("div");
      boxes[i].append(box);
      if (!text.tokens.length) {
        box.append(element("p", { class: "none", text: `measurements.parquet holds no ${this.names.units} of this instance.` }));
        return null;
      }
      return new TextView(box, { ...text, names: this.names, start: this.start?.row === this.opened ? this.start.at : undefined,
        onWindow: (at) => { this.start = { row: this.opened, at }; } });
    });
    find(".scale-note").textContent = first.tokens.length
      ? "The colour of a cell shows its share of the row. If all values were equal, each share would be " +
        `${number(1 / first.tokens.length)} here; the strongest colour stands for six times this share, or more. Negative values are ` +
        "underlined in red. Values are accurate to 0.4% of the largest value of their row; measurements.parquet has the exact ones."
      : "";
  }

  async drawAdversary({ each, there, used }, opening) {
    const epsilon = this.epsilons[this.epsilon];
    const line = find(".adversary");
    line.textContent = "";
    if (epsilon === undefined) return;
    const column = each.columns.find((one) => one.epsilon === epsilon && one.reading === used);
    if (!column) return;
    const stem = column.measure.replace(/\.attention$/, "");
    const read = async (name) => {
      const entry = each.numbers.find((one) => one.measure === `${stem}.${name}` && one.reading === column.reading);
      return entry ? (await each.numbersOf(entry))[there] : NaN;
    };
    const [jsd, tvd] = [await read("jsd"), await read("tvd")];
    if (opening !== this.opening) return;
    line.textContent = Number.isNaN(jsd) ? ""
      : `The adversarial attention differs from the model's attention by a JSD of ${number(jsd)} (at most ${number(Math.LN2)}), while the ` +
        `output moves by a TVD of ${number(tvd)}.`;
  }

  // Shows the opened instance under another reading.
  async read(reading) {
    this.reading = reading;
    await this.redraw();
    if (this.sort?.startsWith("=")) await this.update();
    find(".heads [aria-pressed=true]")?.focus({ preventScroll: true });
  }

  async redraw() {
    if (this.opened === null) return;
    try { await this.show(this.opened, ++this.opening); } catch (error) { this.fail(error); }
  }

  // Lists every measure of the opened instance.
  async drawNumbers() {
    const box = find(".all-numbers > div");
    const { each, there } = this.views[0];
    box.replaceChildren(element("p", { class: "fine", text: "Reading the measures…" }));
    try {
      const entries = each.numbers.filter((entry) => !entry.reading || entry.reading === this.views[0].used);
      const lines = [];
      for (const entry of entries) {
        const value = (await each.numbersOf(entry))[there];
        lines.push(element("p", {}, element("span", { text: fullName(entry.measure, entry.reading) }), element("b", { text: measured(entry, value) })));
      }
      box.replaceChildren(element("div", { class: "columns" }, ...lines), element("p", { class: "fine",
        text: "These numbers are accurate to 0.001% of the range of their measure. measurements.parquet has the exact ones." }));
    } catch (error) {
      this.fail(error);
    }
  }

  listen() {
    let typing = 0;
    control("search").addEventListener("input", () => { clearTimeout(typing); typing = setTimeout(() => this.update(), 120); });
    for (const name of ["wrong", "class", "confidence", "length", "worst", "sort", "order", "disagree"]) {
      control(name).addEventListener("change", () => this.update());
    }
    find(".reset").addEventListener("click", () => this.reset());
    control("case").addEventListener("change", async () => {
      const id = this.opened === null ? null : this.one.ids[this.opened];
      try {
        await this.choose(this.cases[control("case").value]);
        this.opened = null;
        if (id !== null && this.one.row_of.has(id)) this.go(this.one.row_of.get(id));
        else find(".opened").hidden = true;
      } catch (error) { this.fail(error); }
    });
    control("compare").addEventListener("change", () => {
      this.other = control("compare").value === "" ? null : this.cases[control("compare").value];
      this.redraw();
      this.update();
    });
    control("reading").addEventListener("change", () => this.read(control("reading").value));
    control("epsilon").addEventListener("input", () => {
      this.epsilon = Number(control("epsilon").value);
      this.redraw();
    });
    control("numbers").addEventListener("change", () => find(".texts").classList.toggle("all", control("numbers").checked));
    find(".step-back").addEventListener("click", () => this.step(-1));
    find(".step-on").addEventListener("click", () => this.step(1));
    find(".close").addEventListener("click", () => this.close());
    find(".copy").addEventListener("click", async () => {
      const link = location.href.split("#")[0] + this.link(this.opened);
      try {
        await navigator.clipboard.writeText(link);
        this.say("The link is copied.");
      } catch {
        this.say(link);
      }
    });
    find(".all-numbers").addEventListener("toggle", (event) => { if (event.target.open && this.views) this.drawNumbers(); });
    root.addEventListener("keydown", (event) => this.key(event));
    window.addEventListener("hashchange", () => this.follow().catch((error) => this.fail(error)));
    let width = 0;
    new ResizeObserver(() => {
      const now = find(".texts").clientWidth;
      if (now && now !== width) this.texts?.forEach((text) => text?.draw());
      width = now;
    }).observe(find(".texts"));
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.texts?.forEach((text) => text?.draw()));
  }

  // Single letters are shortcuts only while the focus is in the explorer and not in a field.
  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
    const field = event.target.closest("input:not([type=checkbox]), select");
    const inList = event.target === find(".list");
    const handled = () => event.preventDefault();
    if (event.key === "Escape") {
      if (event.target === control("search") && control("search").value) return;
      handled();
      find(".list").focus();
    } else if (event.target === control("search") && event.key === "Enter") {
      handled();
      find(".list").focus();
    } else if (field) {
      return;
    } else if (event.key === "/") {
      handled();
      control("search").focus();
      control("search").select();
    } else if (inList && event.key === "Enter") {
      handled();
      this.go(this.list.row());
    } else if (inList && this.list.key(event.key)) {
      handled();
    } else if (!inList && this.opened !== null && (event.key === "j" || event.key === "k")) {
      handled();
      this.step(event.key === "j" ? 1 : -1);
    }
  }
}

// Adds a link to the explorer to every instance that the report shows.
function addLinks() {
  for (const map of document.querySelectorAll(".map[data-instance]")) {
    const parts = ["instance", "model", "data", "seed"].map((name) => `${name}=${encodeURIComponent(map.dataset[name])}`);
    map.querySelector(".caption").append(element("a", { class: "explorer-link", href: `#${parts.join("&")}`, text: "Explore" }));
  }
}

async function main() {
  root.hidden = false;
  for (const one of document.querySelectorAll(".needs-explorer")) one.hidden = false;
  try {
    if (typeof DecompressionStream === "undefined") throw new Error("This browser cannot read the data of the explorer. Use a newer one.");
    const manifest = asJson(await inflated(document.getElementById("explorer-manifest").textContent));
    await new Explorer(manifest, new Parts(manifest)).start();
    addLinks();
    root.dataset.state = "ready";
  } catch (error) {
    find(".status").classList.add("error");
    find(".status").textContent = error.message;
    root.dataset.state = "failed";
  }
}

main();
