"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const form = document.getElementById("form");
const annotator = document.getElementById("annotator");
const total = data.pairs.length * Object.keys(data.questions).length;
const store = `mucola-sheet-${data.pairs.length}-${data.pairs[0].prompt}`;
const saved = (() => {
  try { return JSON.parse(localStorage.getItem(store)) ?? {}; } catch { return {}; }
})();
annotator.value = saved.annotator ?? "";

function element(tag, properties, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

function question(pair, name, text) {
  const field = element("fieldset", {}, element("legend", {}, text));
  for (const answer of ["A", "B", "equal"]) {
    const input = element("input", { type: "radio", name: `${pair}|${name}`, value: answer });
    input.checked = saved.answers?.[pair]?.[name] === answer;
    field.append(element("label", {}, input, answer));
  }
  return field;
}

for (const { pair, prompt, A, B } of data.pairs) {
  form.append(element("article", { className: "card pair" },
    element("h3", {}, `Pair ${Number(pair)}`),
    element("p", { className: "soft" }, prompt),
    element("div", { className: "texts" },
      element("div", {}, element("b", {}, "A "), A), element("div", {}, element("b", {}, "B "), B)),
    ...Object.entries(data.questions).map(([name, text]) => question(pair, name, text))));
}

function collected() {
  const answers = {};
  for (const [key, value] of new FormData(form)) {
    const bar = key.indexOf("|");
    (answers[key.slice(0, bar)] ??= {})[key.slice(bar + 1)] = value;
  }
  return { annotator: annotator.value, answers };
}

function update() {
  const result = collected();
  const done = Object.values(result.answers).reduce((sum, given) => sum + Object.keys(given).length, 0);
  document.getElementById("done").textContent = `${done} of ${total} answered`;
  try { localStorage.setItem(store, JSON.stringify(result)); } catch { /* private windows keep nothing */ }
}

form.addEventListener("change", update);
annotator.addEventListener("input", update);
document.getElementById("download").addEventListener("click", () => {
  const blob = new Blob([JSON.stringify(collected(), null, 2)], { type: "application/json" });
  const link = element("a", { href: URL.createObjectURL(blob), download: `answers-${annotator.value || "anonymous"}.json` });
  link.click();
  URL.revokeObjectURL(link.href);
});
update();
