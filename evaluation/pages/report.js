"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const PAGE = 20;

// The tables: a click or Enter on a heading sorts by it; empty cells stay at the end.
function sortBy(button) {
  const head = button.closest("th");
  const body = head.closest("table").tBodies[0];
  const index = [...head.parentNode.children].indexOf(head);
  const up = head.getAttribute("aria-sort") !== "ascending";
  [...head.parentNode.children].forEach((other) => other.setAttribute("aria-sort", "none"));
  head.setAttribute("aria-sort", up ? "ascending" : "descending");
  const key = (row) => row.children[index].dataset.value;
  const rows = [...body.rows].sort((a, b) => {
    const [x, y] = [key(a), key(b)];
    if (x === "" || y === "") return (x === "") - (y === "");
    const order = index === 0 ? x.localeCompare(y) : Number(x) - Number(y);
    return up ? order : -order;
  });
  body.append(...rows);
}
document.querySelectorAll(".sortable thead button").forEach((button) => {
  button.addEventListener("click", () => sortBy(button));
});

// The samples.
const controls = document.getElementById("controls");
const list = document.getElementById("samples");
let shown = [];
let visible = 0;

function element(tag, properties, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

// What may offend is not on the page until someone asks for it.
function veil(what, content) {
  const reveal = element("button", { type: "button", className: "button veil" }, `Show ${what} (may offend)`);
  reveal.addEventListener("click", () => reveal.replaceWith(content));
  return reveal;
}

function card(sample) {
  const prompt = element("span", { className: "prompt" }, sample.prompt);
  const text = element("p", { className: "text" },
    sample.prompt_hidden ? veil("prompt", prompt) : prompt, sample.hidden ? veil("text", sample.text) : sample.text);
  const meta = element("p", { className: "meta" }, element("b", {}, sample.run), element("span", {}, sample.source));
  for (const [name, value] of Object.entries(sample.scores)) {
    meta.append(element("span", {}, `${name} ${value === null ? "not scored" : value.toFixed(2)}`));
  }
  for (const [name, { value, threshold }] of Object.entries(sample.values)) {
    const held = value <= threshold;
    meta.append(element("span", { className: held ? "ok" : "no" },
      `${held ? "✓" : "✗"} ${name}: ${value.toFixed(2)} (≤ ${threshold.toFixed(2)})`));
  }
  if (sample.verified !== null) {
    meta.append(element("span", { className: sample.verified ? "ok" : "no" }, sample.verified ? "verified" : "not verified"));
  }
  return element("article", { className: "sample" }, text, meta);
}

function more() {
  list.append(...shown.slice(visible, visible + PAGE).map(card));
  visible = Math.min(shown.length, visible + PAGE);
  document.getElementById("count").textContent = `${visible} of ${shown.length} samples shown`;
  document.getElementById("more").hidden = visible >= shown.length;
}

function refresh() {
  const { run, prompt, order } = Object.fromEntries(new FormData(controls));
  const wanted = prompt.trim().toLowerCase();
  shown = data.samples.filter((s) => (!run || s.run === run) && s.prompt.toLowerCase().includes(wanted));
  const orders = {
    worst: (a, b) => b.badness - a.badness,
    best: (a, b) => a.badness - b.badness,
    prompt: (a, b) => a.prompt.localeCompare(b.prompt) || b.badness - a.badness,
  };
  shown.sort(orders[order]);
  list.replaceChildren();
  visible = 0;
  more();
}

controls.addEventListener("input", refresh);
controls.addEventListener("submit", (event) => event.preventDefault());
document.getElementById("more").addEventListener("click", more);
refresh();
