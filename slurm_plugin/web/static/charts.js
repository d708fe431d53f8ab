// Charts: curves by uPlot (shipped beside this file), and parallel coordinates, which uPlot does not draw, as SVG.
import { el, plain, short } from "./page.js";

export const colour = (at) => getComputedStyle(document.documentElement).getPropertyValue(`--c${((at % 8) + 8) % 8}`).trim();
const LOG_SPAN = 50; // a parameter that spans more than this factor is drawn on a logarithmic axis
const MOST_AXES = 9;
const drawers = new WeakMap(); // the place of a chart -> what draws it there
let drawn = [];

/** A place for a chart, which `draw` fills. Its attribute tells how the data end: what is new there is news. */

export function chart(words, series, data, options = {}) {
  const ends = [data[0].length, ...data.map((column) => column[column.length - 1])].join(" ");
  const place = el("div", { class: "chart", role: "img", "aria-label": words, "data-ends": ends });
  const style = getComputedStyle(document.documentElement);
  const [ink, line] = [style.getPropertyValue("--soft").trim(), style.getPropertyValue("--line").trim()];
  const axis = { stroke: ink, grid: { stroke: line, width: 1 }, ticks: { show: false }, font: "12px Inter, system-ui, sans-serif", size: 28 };
  drawers.set(place, () => {
    const width = Math.max(240, place.clientWidth || 600);
    const format = (_, values) => values.map((value) => (value === null ? "" : short(value)));
    return new uPlot({
      width, height: 240, padding: [10, 8, 0, 0], legend: { show: false }, cursor: { show: false },
      scales: { x: { time: Boolean(options.times) }, y: options.scale || {} },
      axes: [options.times ? axis : { ...axis, values: format }, { ...axis, size: 56, values: format }],
      series: [{}, ...series.map((one) => ({ width: 1.75, points: { show: data[0].length < 2 }, spanGaps: true, ...one }))],
    }, data, place);
  });
  return place;
}

/** Draws the charts of what is shown now. Those of before are given up: uPlot keeps each until it is told. */
export function draw(shown) {
  for (const plot of drawn) plot.destroy();
  drawn = [...shown.querySelectorAll(".chart")].map((place) => drawers.get(place)());
}

export const legend = (entries) => el("ul", { class: "legend" },
  ...entries.map(([at, words]) => el("li", {}, el("span", { class: `dot c${at}` }), words)));

export function curves(trainings, words) {
  const steps = [...new Set(trainings.flatMap((one) => one.curve.points.map((point) => point[0])))].sort((a, b) => a - b);
  const data = [steps, ...trainings.map((one) => { const at = new Map(one.curve.points); return steps.map((step) => (at.has(step) ? at.get(step) : undefined)); })];
  const series = trainings.map((one, at) => ({
    stroke: at === 0 && trainings.length > 1 ? colour(1) : colour(one.state === "stopped" ? 7 : 0),
    width: at === 0 ? 2.5 : 1.25, dash: one.state === "stopped" ? [4, 4] : undefined,
  }));
  // The best is first in the list, and drawn last so that it lies on top.
  return chart(words, series.reverse(), [data[0], ...data.slice(1).reverse()]);
}

// ---- Parallel coordinates: an axis for each parameter that differs and one for the value; a line for each training.

function scaleOf(values) {
  const numbers = values.filter((value) => typeof value === "number");
  if (numbers.length && numbers.length === values.length) {
    let [low, high] = [Math.min(...numbers), Math.max(...numbers)];
    const isLog = low > 0 && high / low > LOG_SPAN;
    if (low === high) [low, high] = [low - 1, high + 1];
    const map = isLog ? Math.log : (value) => value;
    const share = (value) => (map(value) - map(low)) / (map(high) - map(low));
    const middle = isLog ? Math.exp((Math.log(low) + Math.log(high)) / 2) : (low + high) / 2;
    return { share, ticks: [low, middle, high].map((value) => [share(value), short(value)]), note: isLog ? " (log)" : "" };
  }
  const words = [...new Set(values.map(String))].sort().slice(0, 40);
  const share = (value) => (words.length > 1 ? Math.max(0, words.indexOf(String(value))) / (words.length - 1) : 0.5);
  const shown = words.length > 8 ? words.filter((_, at) => at % Math.ceil(words.length / 8) === 0) : words;
  return { share, ticks: shown.map((word) => [share(word), word.slice(0, 18)]), note: "" };
}

function svg(tag, attributes, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children.map(plain));
  return made;
}

export function parallel(trainings, metric) {
  const told = trainings.filter((one) => one.curve.params.length);
  const names = [...new Set(told.flatMap((one) => one.curve.params.map((pair) => pair[0])))].sort();
  const of = new Map(told.map((one) => [one, new Map(one.curve.params)]));
  const varied = names.filter((name) => new Set(told.map((one) => String(of.get(one).get(name)))).size > 1).slice(0, MOST_AXES - 1);
  if (told.length < 2 || !varied.length) return null;
  const axes = [...varied.map((name) => [name, (one) => of.get(one).get(name)]), [metric, (one) => one.curve.best]];
  const [width, height, top, bottom, side] = [Math.max(520, 150 * axes.length), 300, 44, 270, 70];
  const x = (at) => side + (at * (width - 2 * side)) / (axes.length - 1);
  const y = (share) => bottom - share * (bottom - top);
  const scales = axes.map(([, value]) => scaleOf(told.map(value).filter((one) => one !== undefined)));
  const down = told[0].curve.direction === "min"; // the best is on top, whichever way is better
  const last = axes.length - 1;
  if (down) { const { share, ticks } = scales[last]; scales[last] = { ...scales[last], share: (value) => 1 - share(value), ticks: ticks.map(([at, word]) => [1 - at, word]) }; }
  const paths = told.map((one, rank) => {
    const corners = axes.map(([, value], at) => { const found = value(one); return found === undefined ? null : `${x(at).toFixed(1)},${y(scales[at].share(found)).toFixed(1)}`; });
    const pieces = corners.filter((corner) => corner !== null);
    const path = svg("path", { d: `M${pieces.join("L")}`, "data-job": one.curve.jobid });
    path.style.stroke = rank === 0 ? "var(--c1)" : one.state === "stopped" ? "var(--c7)" : "var(--c0)";
    if (rank === 0) path.classList.add("best");
    path.append(svg("title", {}, `job ${one.curve.jobid}: ${metric} ${short(one.curve.best)}; ${one.curve.params.map(([key, value]) => `${key}=${short(value)}`).join(", ")}`));
    return path;
  });
  const marks = axes.flatMap(([name], at) => [
    svg("line", { x1: x(at), x2: x(at), y1: top, y2: bottom }),
    svg("text", { x: x(at), y: 20, "text-anchor": "middle", class: "axis" }, name.length > 20 ? `${name.slice(0, 19)}…` : name),
    svg("text", { x: x(at), y: 34, "text-anchor": "middle" }, at === last ? "best on top" : scales[at].note.trim()),
    ...scales[at].ticks.map(([share, word]) => svg("text", { x: x(at) + (at === last ? -7 : 7), y: y(share) + 4, "text-anchor": at === last ? "end" : "start" }, word)),
  ]);
  const words = `${told.length} trainings: ${varied.join(", ")} against ${metric}; the table below has the same values`;
  const drawn = svg("svg", { viewBox: `0 0 ${width} ${height}`, class: "parallel", role: "img", "aria-label": words }, ...paths.reverse(), ...marks);
  drawn.style.minWidth = `${Math.min(width, 90 * axes.length)}px`;
  return el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Parameters against value" }, drawn);
}

export function light(job) {
  for (const path of document.querySelectorAll(".parallel path")) {
    path.classList.toggle("lit", job !== null && path.dataset.job === String(job));
    path.classList.toggle("dim", job !== null && path.dataset.job !== String(job));
  }
}
