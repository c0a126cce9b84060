"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const slider = document.getElementById("slider");
const play = document.getElementById("play");
const last = data.steps.length - 1;
const cursors = [...document.querySelectorAll("figure svg")].map((svg) => {
  const line = document.createElementNS("http://www.w3.org/2000/svg", "line");
  line.setAttribute("class", "cursor");
  line.setAttribute("y1", 8);
  line.setAttribute("y2", svg.viewBox.baseVal.height - 42);
  svg.append(line);
  return line;
});
let timer = null;

function fact(text, className) {
  const made = document.createElement("span");
  made.textContent = text;
  if (className) made.className = className;
  return made;
}

function number(value, digits) {
  return value === null ? "∞" : value.toFixed(digits);
}

function show(place) {
  const step = data.steps[place];
  const before = place > 0 ? data.steps[place - 1].tokens : step.tokens;
  const prompt = document.createElement("span");
  prompt.className = "prompt";
  prompt.textContent = data.prompt;
  const tokens = step.tokens.map((token, index) => {
    const piece = document.createElement(token === before[index] ? "span" : "mark");
    piece.textContent = data.texts[token] ?? `⟨${token}⟩`;
    return piece;
  });
  document.getElementById("text").replaceChildren(prompt, ...tokens);
  const changed = step.tokens.filter((token, index) => token !== before[index]).length;
  const facts = [
    fact(step.satisfied ? "✓ satisfied" : "✗ not satisfied", step.satisfied ? "ok" : "no"),
    fact(`NLL ${number(step.nll, 1)}`),
    fact(`${changed} changed`),
  ];
  data.constraints.forEach(({ name, threshold }, index) => {
    const value = step.values[index];
    const held = value !== null && value <= threshold;
    const weight = number(step.multipliers[index], 2);
    facts.push(fact(`${name}: ${number(value, 2)} (≤ ${number(threshold, 2)}), λ ${weight}`, held ? "ok" : "no"));
  });
  document.getElementById("facts").replaceChildren(...facts);
  document.getElementById("step").textContent = `${place} of ${last}`;
  slider.setAttribute("aria-valuetext", `step ${place} of ${last}`);
  const x = data.across[0] + (data.across[1] - data.across[0]) * (last ? place / last : 0);
  cursors.forEach((line) => { line.setAttribute("x1", x); line.setAttribute("x2", x); });
}

function stop() {
  clearInterval(timer);
  timer = null;
  play.textContent = "Play";
  play.setAttribute("aria-pressed", "false");
}

play.addEventListener("click", () => {
  if (timer) { stop(); return; }
  if (Number(slider.value) >= last) slider.value = 0;
  play.textContent = "Pause";
  play.setAttribute("aria-pressed", "true");
  timer = setInterval(() => {
    slider.value = Number(slider.value) + 1;
    show(Number(slider.value));
    if (Number(slider.value) >= last) stop();
  }, 120);
});
slider.addEventListener("input", () => { stop(); show(Number(slider.value)); });
show(0);
