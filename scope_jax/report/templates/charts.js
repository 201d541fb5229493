// Shows the values of the step under the pointer in the legends of the charts (report/charts.py); else the latest ones.
"use strict";
for (const figure of document.querySelectorAll("figure.chart")) {
  const drawing = figure.querySelector("svg"), cursor = figure.querySelector(".cursor"), place = figure.querySelector("figcaption output");
  const last = Number(drawing.dataset.last), [width, , left, right, top, bottom] = drawing.dataset.frame.split(" ").map(Number);
  const curves = [...figure.querySelectorAll("li")].map((item) => ({
    value: item.querySelector("output"), steps: item.dataset.steps.split(" ").map(Number), shown: item.dataset.shown.split("|") }));
  const steps = [...new Set(curves.flatMap((curve) => curve.steps))];

  drawing.addEventListener("pointermove", show);
  drawing.addEventListener("pointerdown", show);
  drawing.addEventListener("pointerleave", rest);

  function show(event) {
    const box = drawing.getBoundingClientRect();
    const at = ((event.clientX - box.left) / box.width * width - left) / (right - left) * last;
    const step = steps.reduce((best, one) => Math.abs(one - at) < Math.abs(best - at) ? one : best);
    cursor.setAttribute("d", `M${left + step / last * (right - left)},${top}V${bottom}`);
    place.textContent = `step ${step.toLocaleString("en")}`;
    for (const curve of curves) curve.value.textContent = curve.shown[curve.steps.indexOf(step)] ?? "–";
  }

  function rest() {
    cursor.setAttribute("d", "");
    place.textContent = "latest step";
    for (const curve of curves) curve.value.textContent = curve.shown.at(-1);
  }
}
