// The list of instances. Only the rows in view are elements of the page, so that it can hold 100,000 of them.

const MOST_HIGH = 326; // pixels

class RowList {
  constructor(list, { onOpen, describe }) {
    this.list = list;
    this.onOpen = onOpen;
    this.describe = describe;
    this.rows = [];
    this.active = 0;
    this.space = element("div", { class: "space", role: "presentation" });
    list.append(this.space);
    list.addEventListener("scroll", () => this.draw());
    new ResizeObserver(() => this.draw()).observe(list);
    list.addEventListener("click", (event) => {
      const option = event.target.closest("[role=option]");
      if (option) { this.activate(Number(option.dataset.place)); this.onOpen(this.row()); }
    });
  }

  row() { return this.rows[this.active]; }

  height() { return parseFloat(getComputedStyle(this.list).getPropertyValue("--row")); }

  // Shows rows, in this order. The active row stays active if it is among them.
  show(rows, active) {
    this.rows = rows;
    this.active = Math.max(0, active === undefined ? 0 : rows.indexOf(active));
    this.list.style.height = `${Math.min(MOST_HIGH, Math.max(1, rows.length) * this.height() + 2)}px`;
    this.space.style.height = `${rows.length * this.height()}px`;
    this.list.scrollTop = 0;
    this.reveal();
    this.draw();
  }

  activate(place) {
    this.active = Math.max(0, Math.min(this.rows.length - 1, place));
    this.reveal();
    this.draw();
  }

  // Scrolls the list, but not the page, to the active row.
  reveal() {
    const [top, height] = [this.active * this.height(), this.height()];
    if (top < this.list.scrollTop) this.list.scrollTop = top;
    else if (top + height > this.list.scrollTop + this.list.clientHeight) {
      this.list.scrollTop = top + height - this.list.clientHeight;
    }
  }

  draw() {
    const height = this.height();
    this.space.style.height = `${this.rows.length * height}px`;
    const first = Math.max(0, Math.floor(this.list.scrollTop / height) - 4);
    const last = Math.min(this.rows.length, Math.ceil((this.list.scrollTop + this.list.clientHeight) / height) + 4);
    const options = [];
    for (let place = first; place < last; place++) {
      const option = element("div", {
        role: "option",
        id: `explorer-row-${place}`,
        "aria-selected": String(place === this.active),
        "aria-posinset": place + 1,
        "aria-setsize": this.rows.length,
        "data-place": place,
      }, ...this.describe(this.rows[place], () => this.drawSoon()));
      option.style.top = `${place * height}px`;
      options.push(option);
    }
    this.space.replaceChildren(...options);
    const shown = this.active >= first && this.active < last && this.rows.length;
    if (shown) this.list.setAttribute("aria-activedescendant", `explorer-row-${this.active}`);
    else this.list.removeAttribute("aria-activedescendant");
  }

  drawSoon() {
    if (this.soon) return;
    this.soon = requestAnimationFrame(() => { this.soon = 0; this.draw(); });
  }

  // Moves the active row by a key. Returns whether the key did so.
  key(key) {
    const page = Math.max(1, Math.floor(this.list.clientHeight / this.height()) - 1);
    const steps = { ArrowDown: 1, j: 1, ArrowUp: -1, k: -1, PageDown: page, PageUp: -page, Home: -Infinity, End: Infinity };
    if (!(key in steps)) return false;
    this.activate(this.active + steps[key]);
    return true;
  }
}
