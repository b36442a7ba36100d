// The output as a row of tokens. A thick underline marks an uncertain token; selecting a token lists the alternatives.
import { el, visible, share, roving } from "./dom.js";

class TokenRun extends HTMLElement {
  connectedCallback() {
    this.text ?? this.clear();
  }

  clear(note = "") {
    this.tokens = [];
    this.items = [];
    this.text = el("div", { class: "output-tokens", role: "toolbar", "aria-label": "Output tokens" });
    this.panel = el("div", { class: "choices", "aria-live": "polite" });
    this.hint = el("p", { class: "note" }, note);
    roving(this.text, ".tok");
    this.title_ = el("h4", { hidden: true }, "Tokens");
    this.replaceChildren(this.title_, this.text, this.hint, this.panel);
  }

  // {text, logprob, best: [[text, logprob], ..], given}
  add(token) {
    const place = this.tokens.push(token) - 1;
    this.title_.hidden = false;
    const probability = Math.exp(token.logprob);
    const item = el("button", { type: "button", class: token.given ? "tok given" : "tok", tabindex: place ? "-1" : "0", "aria-label": `${visible(token.text)}, ${share(probability)}` },
      el("bdi", {}, visible(token.text)));
    item.style.setProperty("--p", String(Math.round(100 * probability) / 100));
    item.addEventListener("pointerenter", () => this.open(place));
    item.addEventListener("focus", () => this.open(place));
    item.classList.toggle("sign", /^\s*$/.test(token.text));
    this.items.push(item);
    this.text.append(item, ...(token.text === "\n" ? [el("span", { class: "break" })] : []));
  }

  openLeastCertain() {
    const logprobs = this.tokens.map((token) => token.logprob);
    if (logprobs.length && !this.contains(document.activeElement)) this.open(logprobs.indexOf(Math.min(...logprobs)));
  }

  open(place) {
    const token = this.tokens[place];
    this.items.forEach((item, number) => item.classList.toggle("on", number === place));
    const rows = token.best.some(([text]) => text === token.text) ? token.best : [[token.text, token.logprob], ...token.best];
    const bars = rows.map(([text, logprob]) => {
      const bar = el("div", { class: "bar" });
      bar.style.setProperty("--p", String(Math.exp(logprob)));
      return el("li", { class: text === token.text ? "own" : "" }, el("bdi", { class: "tok" }, visible(text)), bar, el("span", { class: "number" }, share(Math.exp(logprob))));
    });
    this.panel.replaceChildren(el("h4", {}, `Token ${place + 1} of ${this.tokens.length}`), el("ol", {}, bars));
  }
}
customElements.define("token-run", TokenRun);
