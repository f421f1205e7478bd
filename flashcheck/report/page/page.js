"use strict";
// Pictures in the colours of the page, and rows that are looked for. Text is never made into HTML.
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function theme(place) {
  const axis = { gridcolor: colour("--grid"), zerolinecolor: colour("--line"), linecolor: colour("--line") };
  const made = {
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    "font.color": colour("--ink"),
    "font.family": "system-ui, sans-serif",
  };
  for (const name of ["xaxis", "yaxis", ...("yaxis2" in place.layout ? ["yaxis2"] : [])]) {
    for (const [key, value] of Object.entries(axis)) made[`${name}.${key}`] = value;
  }
  return made;
}

// A finger that drags scrolls the page, not the picture.
const touch = matchMedia("(pointer: coarse)").matches;
const options = { responsive: true, displaylogo: false, displayModeBar: touch ? false : "hover" };
const drawn = [];

function draw(place) {
  const figure = JSON.parse(document.getElementById(place.dataset.figure).textContent);
  if (touch) figure.layout.dragmode = false;
  Plotly.newPlot(place, figure.data, figure.layout, options).then(() => {
    drawn.push(place);
    Plotly.relayout(place, theme(place));
  });
}

// One by one as they come near, so that a page of many pictures opens at once.
const watcher = new IntersectionObserver(
  (entries) => {
    for (const entry of entries) {
      if (!entry.isIntersecting) continue;
      watcher.unobserve(entry.target);
      draw(entry.target);
    }
  },
  { rootMargin: "400px" },
);
document.querySelectorAll(".plot").forEach((place) => watcher.observe(place));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  drawn.forEach((place) => Plotly.relayout(place, theme(place)));
});

document.querySelectorAll(".find").forEach((form) => {
  const table = document.getElementById(form.dataset.table);
  const [words, status, shown] = ["input", "select", "output"].map((tag) => form.querySelector(tag));
  const rows = [...table.tBodies[0].rows];
  const texts = rows.map((row) => row.textContent.toLowerCase());
  const look = () => {
    const wanted = words.value.toLowerCase().split(/\s+/).filter(Boolean);
    let number = 0;
    rows.forEach((row, i) => {
      const fits =
        (!status.value || row.dataset.status === status.value) &&
        wanted.every((word) => texts[i].includes(word));
      row.hidden = !fits;
      number += fits;
    });
    shown.textContent = `${number} of ${rows.length} cases`;
  };
  words.addEventListener("input", look);
  status.addEventListener("change", look);
  form.hidden = false;
  look();
});
