// Heat maps: a canvas with one pixel per weight, enlarged by the browser without smoothing. Maps of 256 tokens stay cheap,
// and their cells stay sharp.
import { el, visible, share } from "./dom.js";

const DARK = matchMedia("(prefers-color-scheme: dark)");

function colourOf(name) {
  const probe = getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  return [1, 3, 5].map((at) => parseInt(probe.slice(at, at + 2), 16));
}

export function paintWeights(canvas, weights) {
  const rows = weights.length, columns = rows ? weights[0].length : 0;
  if (!rows || !columns) return;
  canvas.width = columns;
  canvas.height = rows;
  const none = colourOf("--heat-none"), full = colourOf("--heat-full");
  const context = canvas.getContext("2d");
  const image = context.createImageData(columns, rows);
  let at = 0;
  for (const row of weights) {
    for (const weight of row) {
      // Weights are shares of a row, so most are small. The square root keeps them visible.
      const heat = Math.sqrt(Math.min(1, Math.max(0, Number(weight))));
      for (let part = 0; part < 3; part += 1) image.data[at + part] = none[part] + (full[part] - none[part]) * heat;
      image.data[at + 3] = 255;
      at += 4;
    }
  }
  context.putImageData(image, 0, 0);
}

// A map without labels, for grids.
class HeatThumb extends HTMLElement {
  set weights(weights) {
    this.shown = weights;
    this.draw();
  }

  connectedCallback() {
    DARK.addEventListener("change", this.redraw = () => this.draw());
    this.draw();
  }

  disconnectedCallback() {
    DARK.removeEventListener("change", this.redraw);
  }

  draw() {
    if (!this.shown || !this.isConnected) return;
    const canvas = this.querySelector("canvas") ?? this.appendChild(el("canvas", { "aria-hidden": "true" }));
    paintWeights(canvas, this.shown);
    const rows = this.shown.length, columns = this.shown[0]?.length ?? 1;
    canvas.style.aspectRatio = String(Math.min(1.8, Math.max(0.8, columns / Math.max(1, rows))));
  }
}
customElements.define("heat-thumb", HeatThumb);

// A map whose labels stay visible while it scrolls. Pointer, focus and arrow keys select a cell.
class HeatMap extends HTMLElement {
  // {weights, rows, columns, verb, label}: rows and columns are lists of texts, or null for positions without names.
  set data(data) {
    this.given = data;
    this.draw();
  }

  connectedCallback() {
    DARK.addEventListener("change", this.redraw = () => this.draw());
    this.resizes = new ResizeObserver(() => this.fit());
    this.resizes.observe(this);
    this.draw();
  }

  disconnectedCallback() {
    DARK.removeEventListener("change", this.redraw);
    this.resizes.disconnect();
  }

  draw() {
    if (!this.given || !this.isConnected) return;
    const { weights } = this.given;
    this.rowCount = weights.length;
    this.columnCount = weights[0]?.length ?? 0;
    this.canvas = el("canvas", { "aria-hidden": "true" });
    this.rowBand = el("div", { class: "band" });
    this.columnBand = el("div", { class: "band" });
    this.body = el("div", { class: "cells", tabindex: "0", role: "application", "aria-label": this.given.label ?? "Map: arrow keys move between cells" },
      this.canvas, this.rowBand, this.columnBand);
    this.rowLabels = this.labelled(this.given.rows, this.rowCount, "rows");
    this.columnLabels = this.labelled(this.given.columns, this.columnCount, "columns");
    const inner = el("div", { class: "frame" }, el("div", { class: "corner" }), this.columnLabels, this.rowLabels, this.body);
    this.readout = el("p", { class: "readout", "aria-live": "polite" }, "\u00a0");
    this.replaceChildren(el("div", { class: "scroll" }, inner), this.readout);
    paintWeights(this.canvas, weights);
    this.at = null;
    this.listen();
    this.fit();
  }

  labelled(names, length, side) {
    const texts = names ?? Array.from({ length }, (_, place) => String(place + 1));
    const longest = texts.reduce((most, text) => Math.max(most, [...visible(text)].length), 1);
    const box = el("div", { class: `labels ${side}`, "aria-hidden": "true" }, texts.map((text) => el("bdi", {}, visible(text))));
    box.style.setProperty("--longest", String(Math.min(11, Math.max(2, longest))));
    return box;
  }

  fit() {
    if (!this.canvas || !this.clientWidth) return;
    const labels = Math.min(0.36 * this.clientWidth, this.rowLabels.offsetWidth || 60);
    const few = this.columnCount <= this.rowCount / 2;
    const cell = Math.max(7, Math.min(few ? 46 : 30, Math.floor((this.clientWidth - labels - 6) / Math.max(1, this.columnCount))));
    // Square cells, except for maps with many more rows than columns, which would not fit on a screen.
    const high = Math.max(8, few ? Math.min(24, Math.floor(520 / this.rowCount)) : Math.min(cell, 30));
    if (cell === this.cell && high === this.high && this.placed === this.canvas) return;
    Object.assign(this, { cell, high, placed: this.canvas });
    const size = (node, width, height) => {
      if (width !== null) node.style.width = `${width}px`;
      if (height !== null) node.style.height = `${height}px`;
    };
    size(this.canvas, cell * this.columnCount, high * this.rowCount);
    size(this.body, cell * this.columnCount, high * this.rowCount);
    this.body.style.setProperty("--cell", `${cell}px`);
    this.body.style.setProperty("--high", `${high}px`);
    this.body.classList.toggle("lined", Math.min(cell, high) >= 12);
    size(this.rowLabels, null, high * this.rowCount);
    size(this.columnLabels, cell * this.columnCount, null);
    size(this.rowBand, cell * this.columnCount, high);
    size(this.columnBand, cell, high * this.rowCount);
    // Labels are thinned where they would overlap. The label of the selected cell is always shown.
    for (const [box, axis, step] of [[this.rowLabels, "top", high], [this.columnLabels, "left", cell]]) {
      const every = Math.max(1, Math.ceil(13 / step));
      [...box.children].forEach((label, place) => {
        label.style[axis] = `${place * step}px`;
        label.style.setProperty("--cell", `${step}px`);
        label.classList.toggle("thinned", place % every !== 0);
      });
    }
  }

  listen() {
    const find = (event) => {
      const box = this.body.getBoundingClientRect();
      this.point(Math.floor((event.clientY - box.top) / this.high), Math.floor((event.clientX - box.left) / this.cell));
    };
    this.body.addEventListener("pointermove", find);
    this.body.addEventListener("pointerdown", find);
    this.body.addEventListener("pointerleave", () => document.activeElement !== this.body && this.point(null));
    this.body.addEventListener("focus", () => this.at ?? this.point(0, 0));
    this.body.addEventListener("blur", () => this.point(null));
    this.body.addEventListener("keydown", (event) => {
      const move = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
      if (!move) return;
      event.preventDefault();
      const [row, column] = this.at ?? [0, 0];
      this.point(row + move[0], column + move[1], true);
    });
  }

  point(row, column, follow = false) {
    for (const label of this.querySelectorAll(".labels .on")) label.classList.remove("on");
    this.body.classList.toggle("pointed", row !== null);
    if (row === null) {
      this.at = null;
      this.readout.textContent = "\u00a0";
    } else {
      row = Math.max(0, Math.min(this.rowCount - 1, row));
      column = Math.max(0, Math.min(this.columnCount - 1, column));
      this.at = [row, column];
      this.rowBand.style.transform = `translateY(${row * this.high}px)`;
      this.columnBand.style.transform = `translateX(${column * this.cell}px)`;
      const names = [this.rowLabels.children[row], this.columnLabels.children[column]];
      names.forEach((label) => label.classList.add("on"));
      this.report(names[0].textContent, names[1].textContent, Number(this.given.weights[row][column]));
      if (follow) this.reveal(row, column);
    }
    this.dispatchEvent(new CustomEvent("point", { detail: this.at }));
  }

  report(row, column, weight) {
    const verb = this.given.verb ?? "reads";
    this.readout.replaceChildren(el("bdi", { class: "tok" }, row), ` ${verb} `, el("bdi", { class: "tok" }, column), "  ",
      el("strong", {}, share(weight)));
  }

  reveal(row, column) {
    const scroll = this.querySelector(".scroll");
    const left = this.rowLabels.offsetWidth + column * this.cell, top = this.columnLabels.offsetHeight + row * this.high;
    if (left - this.rowLabels.offsetWidth < scroll.scrollLeft) scroll.scrollLeft = left - this.rowLabels.offsetWidth;
    if (left + this.cell > scroll.scrollLeft + scroll.clientWidth) scroll.scrollLeft = left + this.cell - scroll.clientWidth;
    if (top - this.columnLabels.offsetHeight < scroll.scrollTop) scroll.scrollTop = top - this.columnLabels.offsetHeight;
    if (top + this.high > scroll.scrollTop + scroll.clientHeight) scroll.scrollTop = top + this.high - scroll.clientHeight;
  }
}
customElements.define("heat-map", HeatMap);
