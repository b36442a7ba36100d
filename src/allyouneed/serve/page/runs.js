// View 5: learning curves, updated while runs train.
import { el, count } from "./dom.js";
import { get } from "./api.js";
import { Status, empty } from "./parts.js";
import { number } from "./chart.js";

const INTERVAL = 2500; // milliseconds between updates
const MAX_CURVES = 8;
const AXES = { step: "step", tokens: "tokens", seconds: "seconds", flops: "FLOPs" };

class RunsView extends HTMLElement {
  start({ values, keep }) {
    this.keep = keep;
    this.chosen = values.runs === undefined ? null : values.runs.split(",").filter(Boolean);
    this.values = { x: values.x in AXES ? values.x : "step", y: values.y ?? "loss", logx: values.logx ?? "", logy: values.logy ?? "1" };
    this.logs = new Map();
    this.build();
    this.update();
  }

  connectedCallback() {
    this.timer = setInterval(() => document.visibilityState === "visible" && this.update(), INTERVAL);
  }

  disconnectedCallback() {
    clearInterval(this.timer);
  }

  build() {
    this.status = new Status();
    this.list = el("fieldset", { class: "runs" });
    this.chart = el("line-chart");
    this.ys = el("select", { onchange: (event) => this.set("y", event.target.value) });
    const xs = el("select", { onchange: (event) => this.set("x", event.target.value) }, Object.entries(AXES).map(([key, name]) => el("option", { value: key, selected: key === this.values.x }, name)));
    const box = (key, name) => el("label", { class: "check" }, el("input", { type: "checkbox", checked: this.values[key] === "1", onchange: (event) => this.set(key, event.target.checked ? "1" : "0") }), el("span", {}, name));
    this.append(
      el("h1", {}, "Learning curves"),
      el("p", { class: "lead" }, "The training runs of the folder, updated live. Lines show training, dots show evaluations on held-out data."),
      el("div", { class: "bar-of-fields" }, el("label", { class: "field" }, el("span", {}, "Show"), this.ys), el("label", { class: "field" }, el("span", {}, "Over"), xs), box("logx", "log x"), box("logy", "log y")),
      this.status.node, el("div", { class: "run-columns" }, this.chart, this.list));
  }

  set(name, value) {
    this.values[name] = value;
    this.remember();
    this.draw();
  }

  remember() {
    this.keep({ runs: (this.chosen ?? []).join(","), ...this.values });
  }

  async update() {
    if (this.updating) return;
    this.updating = true;
    try {
      this.runs = await get("/runs");
      if (this.chosen === null) this.chosen = this.runs.slice(0, 3).map((run) => run.name);
      const known = new Set(this.runs.map((run) => run.name));
      await Promise.all(this.chosen.filter((name) => known.has(name)).map((name) => this.follow(name)));
      this.status.set("");
      this.drawList();
      this.draw();
    } catch (error) {
      this.status.fail(error);
    }
    this.updating = false;
  }

  // Requests only new records. A run that was rewound or restarted is read from the start.
  async follow(name) {
    const run = this.runs.find((one) => one.name === name), before = this.logs.get(name);
    if (before && before.updated === run.updated && before.step === run.step) return;
    const last = before?.steps.at(-1)?.step ?? -1, again = !before || run.step < last || before.steps.length > 3000;
    const log = await get(`/runs/${encodeURIComponent(name)}?after=${again ? -1 : last}`);
    if (!again) {
      log.steps = [...before.steps, ...log.steps];
      const seen = new Set(log.evaluations.map((one) => one.step));
      log.evaluations = [...before.evaluations.filter((one) => !seen.has(one.step)), ...log.evaluations].sort((a, b) => a.step - b.step);
      log.end ??= before.end;
    }
    this.logs.set(name, { ...log, updated: run.updated, step: run.step });
  }

  drawList() {
    if (!this.runs.length) {
      this.list.replaceChildren(empty("No runs yet", "Train a model; its curve appears here while it trains:", "allyouneed train numbers-en-de --minutes 2 --out runs/first"));
      return;
    }
    const focused = document.activeElement?.dataset?.run;
    this.list.replaceChildren(el("legend", {}, "Runs"), ...this.runs.map((run) => {
      const place = this.chosen.indexOf(run.name);
      const box = el("input", { type: "checkbox", checked: place >= 0, "data-run": run.name, onchange: () => this.toggle(run.name) });
      const key = el("span", { class: place >= 0 ? `key key-${place % MAX_CURVES}` : "key" });
      const at = run.fraction === null ? "" : `${Math.round(100 * run.fraction)} %`;
      const how = { finished: "finished", running: `running${at && `, ${at}`}`, stopped: `stopped${at && ` at ${at}`}` }[run.state];
      const last = run.state === "stopped" ? `last record ${ago(run.updated)}` : "";
      const loss = typeof run.last.loss === "number" ? `loss ${number(run.last.loss)}` : "";
      return el("label", { class: "run" }, box, key, el("span", { class: "title" }, run.name), el("span", { class: "note" }, el("span", { class: `state ${run.state}` }, how), ["", `step ${count(run.step)}`, loss, last].filter((part, place) => !place || part).join(" · ")));
    }));
    if (focused) this.list.querySelector(`[data-run="${CSS.escape(focused)}"]`)?.focus();
  }

  toggle(name) {
    if (this.chosen.includes(name)) this.chosen = this.chosen.filter((one) => one !== name);
    else this.chosen = [...this.chosen, name].slice(-MAX_CURVES);
    this.remember();
    this.drawList();
    this.update();
  }

  draw() {
    const logs = this.chosen.map((name) => this.logs.get(name)).filter(Boolean);
    const found = new Set(["loss"]);
    for (const log of logs) {
      for (const record of [log.steps.at(-1), log.evaluations.at(-1)]) {
        for (const [key, value] of Object.entries(record ?? {})) {
          if (typeof value === "number" && !(key in AXES)) found.add(key);
        }
      }
    }
    if (!found.has(this.values.y)) found.add(this.values.y);
    const names = [...found];
    if (this.names !== names.join()) {
      this.names = names.join();
      this.ys.replaceChildren(...names.map((key) => el("option", { value: key, selected: key === this.values.y }, key.replaceAll("_", " "))));
    }
    const { x, y } = this.values;
    const curves = this.chosen.flatMap((name, place) => {
      const log = this.logs.get(name);
      if (!log) return [];
      const line = points(log.steps, x, y), dots = points(withAxes(log.evaluations, log.steps), x, y);
      return [{ name, colour: place % MAX_CURVES, line, dots }];
    });
    this.chart.show({ curves, x: AXES[x], y: y.replaceAll("_", " "), logX: this.values.logx === "1", logY: this.values.logy === "1" });
  }
}
customElements.define("view-runs", RunsView);

// The time since a moment, in its largest unit.
function ago(moment) {
  const seconds = Math.max(0, (Date.now() - Date.parse(moment)) / 1000);
  const [size, unit] = [[86400, "day"], [3600, "hour"], [60, "minute"]].find(([size]) => seconds >= size) ?? [1, "second"];
  const whole = Math.floor(seconds / size);
  return `${whole} ${unit}${whole === 1 ? "" : "s"} ago`;
}

function points(records, x, y) {
  return records.filter((one) => Number.isFinite(one[x]) && Number.isFinite(one[y])).map((one) => [one[x], one[y]]);
}

// An evaluation records only its step. Tokens, seconds and FLOPs come from the last training record before it.
function withAxes(evaluations, steps) {
  let at = 0;
  return evaluations.map((one) => {
    while (at + 1 < steps.length && steps[at + 1].step <= one.step) at += 1;
    const { seconds, flops, tokens } = steps[at] ?? {};
    return { seconds, flops, tokens, ...one };
  });
}
