// Mouse, wheel and keys; the words around the chart.
function at(event) {
  const box = canvas.getBoundingClientRect();
  return [event.clientX - box.left, event.clientY - box.top];
}
function rowAt(py) {
  const y = py - TOP + scroll;
  return py < TOP ? undefined : rows.find(r => y >= r.y && y < r.y + r.h);
}
function unitAt(px, py) {
  const r = rowAt(py);
  if (!r || !r.units || px < GUTTER) return null;
  let best = null, near = 4;  // pixels: bars may be thinner than a finger is steady
  for (let i = firstIn({ends: r.ends}); i < r.units.length; i++) {
    const u = r.units[i], a = x(startOf(u)), b = Math.max(a + 1, x(endOf(u)));
    if (a > px + near) break;
    const [top, h] = lane(r, u, TOP + r.y - scroll);
    if (mode !== "run" && (py < top || py > top + h)) continue;
    const far = px < a ? a - px : px > b ? px - b : 0;
    if (far < near) { best = u; near = far; }
    if (!far) break;
  }
  return best;
}
function tip(event, fill) {
  const box = $("tip");
  fill(box);
  box.hidden = false;
  const {innerWidth: w, innerHeight: h} = window, {offsetWidth: bw, offsetHeight: bh} = box;
  box.style.left = Math.max(6, event.clientX + 16 + bw > w ? event.clientX - bw - 14 : event.clientX + 16) + "px";
  box.style.top = Math.max(6, event.clientY + 18 + bh > h ? event.clientY - bh - 12 : event.clientY + 18) + "px";
}
function pick(u) {
  picked = u;
  $("panel").hidden = !u;
  if (u) describe(u, $("panel"));
  draw();
}
function show(u) {  // brings a unit into sight
  const a = startOf(u), b = endOf(u), size = view.b - view.a, r = rows.find(q => q.units && q.units.includes(u));
  if (r && (r.y < scroll || r.y + r.h > scroll + tall - TOP)) slide(0, r.y - scroll - (tall - TOP) / 2);
  if (a < view.a || b > view.b) look((a + b - size) / 2, (a + b + size) / 2);
}
function step(by) {  // along the row of the picked unit
  const from = picked || hover || data.units[0], r = from && rows.find(q => q.units && q.units.includes(from));
  if (!r) return;
  const next = r.units[r.units.indexOf(from) + (picked ? by : 0)];
  if (next) { pick(next); show(next); }
}

let held = null, moved = false;
canvas.addEventListener("pointerdown", e => {
  const [px, py] = at(e);
  held = {px, py, over: py < OVERVIEW && px >= GUTTER};
  moved = false;
  canvas.setPointerCapture(e.pointerId);
  if (held.over) centre(px);
});
function centre(px) {
  const middle = (px - GUTTER) / (width - GUTTER - 12) * end, size = view.b - view.a;
  look(middle - size / 2, middle + size / 2);
}
canvas.addEventListener("pointermove", e => {
  const [px, py] = at(e);
  if (held) {
    if (Math.abs(px - held.px) + Math.abs(py - held.py) > 3) moved = true;
    if (!moved) return;
    canvas.classList.add("drag");
    $("tip").hidden = true;
    if (held.over) { centre(px); return; }
    slide(held.px - px, held.py - py);
    held.px = px; held.py = py;
    return;
  }
  const found = unitAt(px, py), r = rowAt(py);
  if (found !== hover) { hover = found; draw(); }
  if (found) tip(e, box => describe(found, box));
  else if (r && r.head !== undefined && r.run !== undefined) tip(e, box => describeRun(data.runs[r.run], box));
  else $("tip").hidden = true;
});
canvas.addEventListener("pointerup", e => {
  if (held && !moved && !held.over) pick(unitAt(...at(e)));
  held = null;
  canvas.classList.remove("drag");
});
canvas.addEventListener("pointerleave", () => { hover = null; $("tip").hidden = true; draw(); });
canvas.addEventListener("dblclick", e => zoom(.4, t(at(e)[0])));
canvas.addEventListener("wheel", e => {
  e.preventDefault();
  const pixels = e.deltaMode === 1 ? 16 : 1, [px] = at(e);
  if (e.shiftKey) slide(0, (e.deltaY || e.deltaX) * pixels);
  else if (Math.abs(e.deltaX) > Math.abs(e.deltaY)) slide(e.deltaX * pixels, 0);
  else if (px < GUTTER) slide(0, e.deltaY * pixels);
  else zoom(Math.exp(e.deltaY * pixels * .0016), t(px));
}, {passive: false});

const HELP = [
  ["wheel", "zoom"], ["drag", "pan"], ["shift + wheel, or wheel over the names", "scroll"], ["click", "keep a unit; its batch and request stay lit"],
  ["a d, ← →", "pan"], ["w s, + -", "zoom"], ["↑ ↓", "scroll"], ["n p", "next and previous unit of the row"], ["0", "fit"],
  ["g", "rows by request or by executor"], ["m", "table of loops"], ["t", "light or dark"], ["Esc", "let go"],
];
function panel(fill) {
  picked = null;
  const box = $("panel"), was = box.dataset.shows === fill.name && !box.hidden;
  box.hidden = was;
  box.dataset.shows = fill.name;
  if (!was) { box.replaceChildren(); fill(box); }
  draw();
}
function help(box) {
  node("h2", "Keys and mouse", box);
  const list = node("dl", undefined, box);
  for (const [key, what] of HELP) { node("dt", key, list); node("dd", what, list); }
}
function sums(box) {
  node("h2", "Loops", box);
  const whole = node("table", undefined, box), middle = list => list.length ? list.sort((a, b) => a - b)[list.length >> 1] : 0;
  const line = (cells, tag) => { const tr = node("tr", undefined, whole); for (const c of cells) node(tag, c, tr); };
  line(["loop", "kind", "units", "batches", "units a batch", "a batch takes", "median wait", "longest wait"], "th");
  data.loops.forEach((name, l) => {
    const units = data.units.filter(u => u[LOOP] === l);
    if (!units.length) return;
    const batches = [...new Set(units.map(u => data.batches[u[BATCH]]))], waits = units.map(u => startOf(u) - u[READY]);
    line([name, data.kinds[l], units.length, batches.length, (units.length / batches.length).toFixed(1),
      span(middle(batches.map(b => (b[ANSWERED] ?? end) - b[STARTED]))), span(middle(waits)), span(Math.max(...waits))], "td");
  });
  node("p", "Times are medians over batches and units. A wait goes from ready to started.", box);
}
const theme = name => { document.documentElement.dataset.theme = name; readColours(); chips(); draw(); };
const turn = () => theme(document.documentElement.dataset.theme === "dark" ? "light" : "dark");
const swap = () => { mode = mode === "run" ? "executor" : "run"; arrange(); };
$("group").onclick = swap; $("fit").onclick = fit; $("theme").onclick = turn;
$("sums").onclick = () => panel(sums); $("keys").onclick = () => panel(help);
window.addEventListener("keydown", e => {
  if (e.ctrlKey || e.metaKey || e.altKey) return;
  const page = width - GUTTER, middle = (view.a + view.b) / 2;
  const does = {
    a: () => slide(-page * .2, 0), ArrowLeft: () => slide(-page * .2, 0), d: () => slide(page * .2, 0), ArrowRight: () => slide(page * .2, 0),
    w: () => zoom(.7, middle), "+": () => zoom(.7, middle), "=": () => zoom(.7, middle), s: () => zoom(1.4, middle), "-": () => zoom(1.4, middle),
    ArrowUp: () => slide(0, -60), ArrowDown: () => slide(0, 60), PageUp: () => slide(0, TOP - tall), PageDown: () => slide(0, tall - TOP),
    n: () => step(1), p: () => step(-1), 0: fit, Home: fit, g: swap, m: () => panel(sums), t: turn, "?": () => panel(help),
    Escape: () => { only = null; pick(null); chips(); },
  }[e.key];
  if (does) { e.preventDefault(); does(); }
});
window.addEventListener("resize", draw);

const CHIPS = 60;
function chips() {
  const box = $("chips");
  box.replaceChildren();
  data.runs.slice(0, CHIPS).forEach((r, i) => {
    const chip = node("button", undefined, box);
    node("i", undefined, chip).style.background = colour(i);
    chip.append(nameOf(r));
    chip.title = "light up this request alone";
    chip.classList.toggle("off", only !== null && only !== i);
    chip.onclick = () => { only = only === i ? null : i; chips(); draw(); };
  });
  if (data.runs.length > CHIPS) node("span", `and ${data.runs.length - CHIPS} more requests`, box);
}
function facts() {
  const busy = data.batches.reduce((sum, b) => sum + (b[ANSWERED] ?? end) - b[STARTED], 0);
  const n = data.units.length, say = (k, one) => `${k.toLocaleString("en")} ${one}${k === 1 ? "" : one.endsWith("h") ? "es" : "s"}`;
  const parts = [say(data.runs.length, "request"), say(n, "unit"), say(data.batches.length, "batch"), span(end)];
  if (n) parts.push(`${(n / data.batches.length).toFixed(1)} units a batch`, `executors busy ${Math.round(100 * busy / end / data.executors.length)} %`);
  if (data.dropped) parts.push(`${data.dropped.toLocaleString("en")} older units were forgotten`);
  return parts.join(" · ");
}
document.title = $("title").textContent = data.title;
$("facts").textContent = facts();
theme(matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
if (data.runs.length > 24) mode = "executor";
arrange();
fit();
canvas.focus();
