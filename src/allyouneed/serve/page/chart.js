// Curves on a canvas: lines, dots for evaluations, linear or logarithmic axes.
import { el, visible } from "./dom.js";

const DARK_NOW = matchMedia("(prefers-color-scheme: dark)");

class LineChart extends HTMLElement {
  connectedCallback() {
    this.canvas = el("canvas", { role: "img" });
    this.readout = el("p", { class: "readout" }, "\u00a0");
    this.replaceChildren(this.canvas, this.readout);
    DARK_NOW.addEventListener("change", this.redraw = () => this.draw());
    this.resizes = new ResizeObserver(() => this.draw());
    this.resizes.observe(this);
    this.canvas.addEventListener("pointermove", (event) => this.report(event));
    this.canvas.addEventListener("pointerleave", () => { this.readout.textContent = "\u00a0"; });
    this.draw();
  }

  disconnectedCallback() {
    DARK_NOW.removeEventListener("change", this.redraw);
    this.resizes.disconnect();
  }

  // {curves: [{name, colour, line: [[x, y]], dots}], x, y, logX, logY}
  show(data) {
    this.data = data;
    this.draw();
  }

  draw() {
    if (!this.data || !this.canvas || !this.clientWidth) return;
    const wide = this.clientWidth, high = Math.max(240, Math.min(460, wide * 0.56)), sharp = devicePixelRatio || 1;
    Object.assign(this.canvas, { width: wide * sharp, height: high * sharp });
    this.canvas.style.height = `${high}px`;
    const context = this.canvas.getContext("2d");
    context.scale(sharp, sharp);
    const style = getComputedStyle(this), colour = (name) => style.getPropertyValue(name).trim();
    context.font = `12px ${style.fontFamily}`;
    const { curves, logX, logY } = this.data;
    const all = curves.flatMap((curve) => [...curve.line, ...curve.dots]);
    const fits = ([x, y]) => (!logX || x > 0) && (!logY || y > 0);
    const points = all.filter(fits);
    const box = this.box = { left: 52, right: wide - 12, top: 26, bottom: high - 42 };
    const across = axis(points.map(([x]) => x), logX), up = axis(points.map(([, y]) => y), logY);
    this.px = (x) => box.left + across.at(x) * (box.right - box.left);
    this.py = (y) => box.bottom - up.at(y) * (box.bottom - box.top);
    this.frame(context, across, up, colour, box);
    for (const curve of curves) this.curve(context, curve, colour(`--curve-${curve.colour}`), colour("--paper"), fits);
    const last = curves.map((curve) => `${visible(curve.name)} ends at ${number(curve.line.at(-1)?.[1] ?? NaN)}`);
    this.canvas.setAttribute("aria-label", `${this.data.y} over ${this.data.x}. ${last.join("; ")}`);
    if (!points.length) context.fillText(curves.length ? "No data yet." : "Choose a run.", box.left + 16, box.top + 28);
  }

  frame(context, across, up, colour, box) {
    context.lineWidth = 1;
    context.textBaseline = "middle";
    context.textAlign = "right";
    for (const tick of up.ticks) {
      const y = Math.round(this.py(tick)) + 0.5;
      context.strokeStyle = colour("--line");
      context.beginPath();
      context.moveTo(box.left, y);
      context.lineTo(box.right, y);
      context.stroke();
      context.fillStyle = colour("--soft");
      context.fillText(number(tick), box.left - 8, y);
    }
    context.textAlign = "center";
    context.textBaseline = "alphabetic";
    const fitting = (box.right - box.left) / 62;
    const every = Math.max(1, Math.ceil(across.ticks.length / fitting));
    across.ticks.forEach((tick, place) => place % every === 0 && context.fillText(number(tick), Math.min(box.right - 14, this.px(tick)), box.bottom + 17));
    context.fillText(this.data.x, (box.left + box.right) / 2, box.bottom + 36);
    context.textAlign = "left";
    context.fillText(this.data.y, box.left, box.top - 9);
  }

  curve(context, { line, dots }, colour, paper, fits) {
    context.strokeStyle = context.fillStyle = colour;
    context.lineWidth = 1.6;
    context.lineJoin = "round";
    context.beginPath();
    line.filter(fits).forEach(([x, y], place) => context[place ? "lineTo" : "moveTo"](this.px(x), this.py(y)));
    context.stroke();
    for (const [x, y] of dots.filter(fits)) {
      context.beginPath();
      context.arc(this.px(x), this.py(y), 3.6, 0, 7);
      context.fill();
      context.lineWidth = 1.5;
      context.save();
      context.strokeStyle = paper;
      context.stroke();
      context.restore();
    }
  }

  report(event) {
    const bounds = this.canvas.getBoundingClientRect(), x = event.clientX - bounds.left, y = event.clientY - bounds.top;
    let best = null, nearest = 40 ** 2;
    for (const curve of this.data?.curves ?? []) {
      for (const point of [...curve.line, ...curve.dots]) {
        const far = (this.px(point[0]) - x) ** 2 + (this.py(point[1]) - y) ** 2;
        if (far < nearest) [nearest, best] = [far, { curve, point }];
      }
    }
    this.readout.replaceChildren(...(best ? [el("bdi", {}, visible(best.curve.name)), ` · ${this.data.x} ${number(best.point[0])} · ${this.data.y} `, el("strong", {}, number(best.point[1]))] : ["\u00a0"]));
  }
}
customElements.define("line-chart", LineChart);

function axis(values, log) {
  let low = Infinity, high = -Infinity;
  for (const value of values) {
    low = Math.min(low, value);
    high = Math.max(high, value);
  }
  if (!(high > low)) [low, high] = Number.isFinite(low) ? (log ? [low / 2, low * 2] : [low - 1, low + 1]) : log ? [1, 10] : [0, 1];
  const as = log ? Math.log : (value) => value;
  const from = as(low), over = as(high) - from, pad = 0.03 * over;
  const at = (value) => (as(value) - from + pad) / (over + 2 * pad);
  return { at, ticks: log ? logTicks(low, high) : roundTicks(low, high) };
}

function roundTicks(low, high) {
  const rough = (high - low) / 5, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((factor) => factor * power).find((one) => one >= rough);
  const ticks = [];
  for (let tick = Math.ceil(low / step) * step; tick <= high + 1e-9 * step; tick += step) ticks.push(Math.abs(tick) < 1e-9 * step ? 0 : tick);
  return ticks;
}

function logTicks(low, high) {
  const ticks = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power += 1) {
    for (const factor of [1, 2, 5]) {
      const tick = factor * 10 ** power;
      if (tick >= low && tick <= high) ticks.push(tick);
    }
  }
  return ticks.length > 9 ? ticks.filter((tick) => Number.isInteger(Math.round(1e6 * Math.log10(tick)) / 1e6)) : ticks.length > 1 ? ticks : roundTicks(low, high);
}

export function number(value) {
  const size = Math.abs(value);
  if (!Number.isFinite(value)) return "–";
  if (size >= 1e12 || (size > 0 && size < 1e-3)) return value.toExponential(1).replace("e+", "e");
  if (size >= 1e9) return `${+(value / 1e9).toPrecision(3)}G`;
  if (size >= 1e6) return `${+(value / 1e6).toPrecision(3)}M`;
  if (size >= 1e4) return `${+(value / 1e3).toPrecision(3)}k`;
  return String(+value.toPrecision(4));
}
