// Chooses and sorts the rows that the list shows.

const LONG_SHARE = 0.1;
const LONG_WORD = 5; // characters

// A text is called long if it has at least this many tokens. At least a tenth of the texts are long.
function longFrom(lengths) {
  const sorted = Uint32Array.from(lengths).sort();
  return sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * (1 - LONG_SHARE)))];
}

// The words of a search, in lower case. Words in double quotes belong together.
function searchWords(query) {
  return [...query.toLowerCase().matchAll(/"([^"]+)"|([^\s"]+)/g)].map((match) => match[1] || match[2]);
}

// Whether a text contains a word. Since tokens can be parts of words, a long word may also run over several of them.
function contains(text, word) {
  return text.includes(word) || (word.length >= LONG_WORD && text.replace(/\s/g, "").includes(word.replace(/\s/g, "")));
}

const CONFIDENCE = {
  "": () => true,
  "at least 0.99": (p) => p >= 0.99,
  "at least 0.9": (p) => p >= 0.9,
  "below 0.9": (p) => p < 0.9,
  "below 0.6": (p) => p < 0.6,
};

// The rows that pass all filters, in the order of the file.
function filtered(one, filters, other) {
  const words = searchWords(filters.search);
  const confident = CONFIDENCE[filters.confidence];
  const long = longFrom(one.lengths);
  const worst = filters.worst === "" ? null : new Set(one.checks[filters.worst].worst.map(([row]) => row));
  const [side, name] = filters.class ? [filters.class[0], filters.class.slice(1)] : ["", ""];
  const rows = [];
  for (let row = 0; row < one.n; row++) {
    if (worst && !worst.has(row)) continue;
    if (filters.wrong && one.wrong(row) !== (filters.wrong === "wrong")) continue;
    if (!confident(one.confidence[row])) continue;
    if (filters.length === "long" && one.lengths[row] < long) continue;
    if (filters.length === "short" && one.lengths[row] >= long) continue;
    if (side === "p" && one.predictedOf(row) !== name) continue;
    if (side === "l" && one.labelOf(row) !== name) continue;
    if (filters.disagree) {
      const there = other.row_of.get(one.ids[row]);
      if (there === undefined || other.predictedOf(there) === one.predictedOf(row)) continue;
    }
    if (words.length) {
      const text = `${one.ids[row]}\n${one.joined[row]}`.toLowerCase();
      if (!words.every((word) => contains(text, word))) continue;
    }
    rows.push(row);
  }
  return rows;
}

// Sorts rows by numbers. Rows without a number come last, and equal ones stay in the order of the file.
function sortRows(rows, numbers, descending) {
  const sign = descending ? -1 : 1;
  return rows.sort((a, b) => {
    const [x, y] = [numbers[a], numbers[b]];
    if (Number.isNaN(x) || Number.isNaN(y)) return Number.isNaN(x) - Number.isNaN(y) || a - b;
    return sign * (x - y) || a - b;
  });
}

// The names of the numbers to sort by, each once. A number that depends on the reading is taken under the shown reading.
function sortNames(one) {
  return [...new Set(one.numbers.map((entry) => entry.measure))];
}

async function sortNumbers(one, name, reading, worst) {
  if (name === "worst") {
    const numbers = new Float64Array(one.n).fill(NaN);
    one.checks[worst].worst.forEach(([row], rank) => { numbers[row] = rank; });
    return numbers;
  }
  if (name === "confidence") return one.confidence;
  if (name === "length") return Float64Array.from(one.lengths);
  return one.numbersOf(one.entry(name.slice(1), reading));
}
