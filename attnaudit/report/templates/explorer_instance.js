// What is shown of one instance under one model: its rows, its facts and its heads.

const HEAD = /^(.*)layer=(-?\d+),heads=(\d+)(.*)$/;
const KINDS = ["attention", "importance", "effect", "adversarial", "other"];

// The rows of an instance under a reading, or under the first reading if the case lacks this one. Adversarial rows are
// included only for the given ε.
async function rowsOf(one, row, reading, epsilon) {
  const all = await one.values(row);
  const readings = one.columns.filter((column) => column.measure === "attention").map((column) => column.reading);
  const used = readings.includes(reading) ? reading : readings[0] ?? "";
  const ofReading = ({ reading, kind }) =>
    reading === used || (!reading && kind !== "attention" && kind !== "adversarial");
  const rows = all.filter(({ column }) => ofReading(column))
    .filter(({ column }) => column.epsilon === undefined || column.epsilon === epsilon)
    .map(({ column, scale, values }) =>
      ({ ...column, name: fullName(column.title, column.reading, ", "), model: "", scale, values }));
  rows.sort((a, b) => KINDS.indexOf(a.kind) - KINDS.indexOf(b.kind));
  return { rows, used, all };
}

function fullName(name, reading, separator = "/") {
  return visible(reading ? `${name}${separator}${reading}` : name);
}

// What a model predicted for an instance, in words. `name` is the name of the model if there are several models.
async function factsOf(one, row, unit, name) {
  const bold = (text) => element("b", {}, element("bdi", { text: visible(text) }));
  const parts = name ? [bold(name), ": "] : [];
  parts.push("predicted ", bold(one.predictedOf(row) || "—"));
  if (!Number.isNaN(one.confidence[row])) parts.push(` with confidence ${number(one.confidence[row])}`);
  const label = one.labelOf(row);
  if (label === null) parts.push(", no label");
  else parts.push(", label ", bold(label), ...(one.wrong(row) ? [" ", element("em", { text: "wrong" })] : []));
  parts.push(`; ${one.lengths[row].toLocaleString("en-US")} ${unit}`);
  const probabilities = one.numbers.filter((entry) => entry.measure.startsWith("probability of "));
  if (probabilities.length > 2) {
    const values = await Promise.all(probabilities.map((entry) => one.numbersOf(entry)));
    const words = probabilities.map((entry, i) =>
      `${visible(entry.measure.slice("probability of ".length))} ${number(values[i][row])}`);
    parts.push(`; probabilities: ${words.join(", ")}`);
  }
  const truncated = one.entry("truncated", "");
  if (truncated && (await one.numbersOf(truncated))[row] > 0) parts.push("; truncated to the limit of the model");
  return [...parts, element("br")];
}

// The matrices of the readings of single heads, one for each stack of layers. A cell shows the text under its head.
// `explorer` has: headMeasure, the measure in the cells; read(reading); and fail(error).
function headMatrices(view, explorer) {
  const stacks = new Map();
  for (const { column, scale } of view.all) {
    const match = column.measure === "attention" && HEAD.exec(column.reading);
    if (!match) continue;
    const stack = `${match[1]}…${match[4]}`;
    if (!stacks.has(stack)) stacks.set(stack, []);
    stacks.get(stack).push({ layer: Number(match[2]), head: Number(match[3]), reading: column.reading, scale });
  }
  const measures = [...new Set(view.each.numbers.filter((one) => HEAD.test(one.reading)).map((one) => one.measure))];
  if (!measures.includes(explorer.headMeasure)) explorer.headMeasure = "";
  return [...stacks.values()].filter((cells) => cells.length > 1)
    .map((cells) => headMatrix(cells, measures, view, explorer));
}

function headMatrix(cells, measures, view, explorer) {
  const layers = [...new Set(cells.map((cell) => cell.layer))].sort((a, b) => a - b);
  const heads = [...new Set(cells.map((cell) => cell.head))].sort((a, b) => a - b);
  const buttons = new Map();
  const body = layers.map((layer) => {
    const row = element("tr", {}, element("th", { scope: "row", text: layer }));
    for (const head of heads) {
      const cell = cells.find((one) => one.layer === layer && one.head === head);
      row.append(element("td"));
      if (!cell) continue;
      const shown = cell.reading === view.used;
      const button = element("button", { type: "button", "aria-pressed": String(shown), tabindex: shown ? 0 : -1,
        "data-layer": layer, "data-head": head });
      button.addEventListener("click", () => explorer.read(cell.reading));
      buttons.set(button, cell);
      row.lastChild.append(button);
    }
    return row;
  });
  if (!cells.some((cell) => cell.reading === view.used)) buttons.keys().next().value.tabIndex = 0;
  const names = heads.map((head) => element("th", { scope: "col", text: head }));
  const table = element("table", { "aria-label": "Heads by layer" },
    element("thead", {}, element("tr", {}, element("td", { text: "layer" }), ...names)), element("tbody", {}, ...body));
  table.addEventListener("keydown", (event) => {
    const moves = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
    const at = event.target.closest("button");
    if (!at || !(event.key in moves)) return;
    event.preventDefault();
    event.stopPropagation();
    const [down, right] = moves[event.key];
    const layer = layers[layers.indexOf(Number(at.dataset.layer)) + down];
    const head = heads[heads.indexOf(Number(at.dataset.head)) + right];
    table.querySelector(`button[data-layer="${layer}"][data-head="${head}"]`)?.focus();
  });
  const choice = element("select");
  fill(choice, [["", `largest weight in this ${explorer.names.row}`], ...measures.map((name) => [name, visible(name)])]);
  choice.value = explorer.headMeasure;
  const color = async () => {
    const value = async (cell) => {
      if (!explorer.headMeasure) return cell.scale;
      const entry = view.each.numbers.find((one) => one.measure === explorer.headMeasure && one.reading === cell.reading);
      return entry ? (await view.each.numbersOf(entry))[view.there] : NaN;
    };
    const values = await Promise.all([...buttons.values()].map(value));
    const largest = Math.max(0, ...values.map(Math.abs).filter((one) => one > 0));
    [...buttons].forEach(([button, cell], i) => {
      button.style.setProperty("--h", largest && values[i] ? (Math.abs(values[i]) / largest).toFixed(3) : 0);
      button.textContent = cellNumber(values[i], decimals(largest)) || "—";
      button.title = `layer ${cell.layer}, head ${cell.head}: ${number(values[i])}. Show the ${explorer.names.row} under this head.`;
    });
  };
  choice.addEventListener("change", () => {
    explorer.headMeasure = choice.value;
    color().catch((error) => explorer.fail(error));
  });
  color().catch((error) => explorer.fail(error));
  return element("div", {}, element("h4", { text: `Heads: choose a cell to read the ${explorer.names.row} under it` }),
    element("label", {}, "Number in the cells", choice), table);
}
