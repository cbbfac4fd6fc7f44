"use strict";
// Units and batches are rows of numbers: see `table` in timeline.py. Times are microseconds from the start.
const data = JSON.parse(document.getElementById("data").textContent);
const [RUN, LOOP, BATCH, PLACE, SIZE, LO, HI, TOLD, READY, MEMORY, DUE, WHY, OUTCOME, SINCE, BLOCKED] = Array(15).keys();
const [NUMBER, EXECUTOR, GROUP, DISPATCHED, STARTED, ANSWERED, MATES, TOTAL] = Array(8).keys();
const $ = id => document.getElementById(id);
const canvas = $("chart"), ink = canvas.getContext("2d");
const GUTTER = 196, OVERVIEW = 34, AXIS = 22, TOP = OVERVIEW + AXIS, HEAD = 24, ROW = 22;

const end = Math.max(1, data.now, ...data.runs.map(r => r.ended || 0));
const startOf = u => data.batches[u[BATCH]][STARTED];
const endOf = u => data.batches[u[BATCH]][ANSWERED] ?? end;
const bad = u => !["done", "in flight"].includes(data.texts[u[OUTCOME]]);
const nameOf = r => r.label || "request " + r.id;

// -- Words

function span(us) {
  const a = Math.abs(us);
  if (a >= 1e6) return (us / 1e6).toFixed(a >= 1e7 ? 1 : 3) + " s";
  if (a >= 1e3) return (us / 1e3).toFixed(a >= 1e5 ? 0 : 2) + " ms";
  return Math.round(us) + " µs";
}
function node(tag, text, parent) {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;  // never markup: labels come from anywhere
  if (parent) parent.append(made);
  return made;
}
function describe(u, into) {
  const run = data.runs[u[RUN]], b = data.batches[u[BATCH]], [expert, op, key] = data.groups[b[GROUP]];
  into.replaceChildren();
  node("h2", `${nameOf(run)} · ${data.loops[u[LOOP]]} · ${data.texts[u[TOLD]]}`, into);
  const list = node("dl", undefined, into);
  const line = (name, value) => { node("dt", name, list); node("dd", value, list); };
  const open = b[ANSWERED] === null;
  line("ran", open ? "still in flight" : `${span(endOf(u) - startOf(u))}, from ${span(startOf(u))} on`);
  if (data.texts[u[OUTCOME]] !== "done") line("outcome", data.texts[u[OUTCOME]]);
  line("waited", `${span(b[DISPATCHED] - u[READY])} from ready to dispatch` +
    (b[STARTED] > b[DISPATCHED] ? `, ${span(b[STARTED] - b[DISPATCHED])} in the mailbox` : ""));
  line("why then", data.texts[u[WHY]]);
  line("rank", `due ${span(u[DUE])}, place ${u[PLACE] + 1} of ${b[MATES]} in batch ${b[NUMBER]}`);
  line("size", `${u[SIZE]} granted of ${u[LO] === u[HI] ? u[LO] : u[LO] + ".." + u[HI]}, ${b[TOTAL]} in the batch`);
  line("on", `${data.executors[b[EXECUTOR]]}, ${expert}.${op}` + (key ? ` [${key}]` : ""));
  const mates = byBatch.get(u[BATCH]).filter(m => m !== u);
  if (mates.length) {
    const shown = mates.slice(0, 8).map(m => `${nameOf(data.runs[m[RUN]])} ${data.loops[m[LOOP]]}`);
    line("beside", shown.join(", ") + (mates.length > 8 ? ` and ${mates.length - 8} more` : ""));
  }
}
function describeRun(r, into) {
  into.replaceChildren();
  node("h2", nameOf(r), into);
  const list = node("dl", undefined, into);
  const line = (name, value) => { node("dt", name, list); node("dd", value, list); };
  line("request", `${r.id}, program ${r.program}, priority ${r.priority}`);
  line("came", span(r.arrival));
  if (r.admitted !== null) line("memory", `after ${span(r.admitted - r.arrival)}`);
  for (const [output, when] of Object.entries(r.first)) line("first " + output, `after ${span(when - r.arrival)}`);
  line("ended", r.ended === null ? "is alive" : `${r.reason}, after ${span(r.ended - r.arrival)}`);
  if (r.detail) line("because", r.detail);
}

// -- Rows

const byBatch = new Map();
for (const u of data.units) byBatch.has(u[BATCH]) ? byBatch.get(u[BATCH]).push(u) : byBatch.set(u[BATCH], [u]);

function row(label, units, lanes) {
  units.sort((a, b) => startOf(a) - startOf(b));
  let last = -Infinity;
  const ends = units.map(u => last = Math.max(last, endOf(u)));
  return {label, units, ends, lanes, h: Math.max(ROW, Math.min(72, 6 + 5 * lanes))};
}
function rowsByRun() {
  const mine = new Map();
  for (const u of data.units) {
    const key = u[RUN] + ":" + u[LOOP];
    mine.has(key) ? mine.get(key).push(u) : mine.set(key, [u]);
  }
  return data.runs.flatMap((r, i) => [
    {head: nameOf(r), note: r.program + (r.reason && r.reason !== "done" ? ", " + r.reason.replace("_", " ") : ""), run: i, h: HEAD},
    ...r.loops.map(l => ({...row(data.loops[l], mine.get(i + ":" + l) || [], 1), run: i})),
  ]);
}
function rowsByExecutor() {
  const out = [], mine = new Map();
  for (const u of data.units) {
    const key = data.batches[u[BATCH]][EXECUTOR] + ":" + u[LOOP];
    mine.has(key) ? mine.get(key).push(u) : mine.set(key, [u]);
  }
  data.executors.forEach((name, e) => {
    out.push({head: name, note: "", h: HEAD});
    data.loops.forEach((loop, l) => {
      const units = mine.get(e + ":" + l);
      if (!units) return;
      const filled = new Map();
      let lanes = 1;
      for (const u of units) {
        u.lane = filled.get(u[BATCH]) || 0;
        filled.set(u[BATCH], u.lane + 1);
        lanes = Math.max(lanes, u.lane + 1);
      }
      for (const u of units) u.lanes = filled.get(u[BATCH]);
      out.push({...row(loop, units, lanes), executor: e});
    });
  });
  return out;
}

let mode = "run", rows = [], height = 0;
function arrange() {
  rows = mode === "run" ? rowsByRun() : rowsByExecutor();
  height = 0;
  for (const r of rows) { r.y = height; height += r.h; }
  $("group").textContent = mode === "run" ? "by request" : "by executor";
  scroll = 0;
  draw();
}

// -- View

const view = {a: 0, b: end};
let scroll = 0, width = 0, tall = 0, hover = null, picked = null, only = null, colours = {}, queued = false;
const x = t => GUTTER + (t - view.a) / (view.b - view.a) * (width - GUTTER);
const t = px => view.a + (px - GUTTER) / (width - GUTTER) * (view.b - view.a);
function look(a, b) {
  const least = 5, most = end * 1.3, size = Math.min(most, Math.max(least, b - a)), middle = (a + b) / 2;
  a = Math.max(-end * .15, Math.min(end * 1.15 - size, middle - size / 2));
  if (size > end) a = (end - size) / 2;
  view.a = a; view.b = a + size;
  draw();
}
const fit = () => look(-end * .01, end * 1.01);
function zoom(factor, at) { look(at - (at - view.a) * factor, at + (view.b - at) * factor); }
function slide(px, rowsPx) {
  const d = px / (width - GUTTER) * (view.b - view.a);
  scroll = Math.max(0, Math.min(Math.max(0, height - (tall - TOP)), scroll + rowsPx));
  look(view.a + d, view.b + d);
}
function readColours() {
  const style = getComputedStyle(document.documentElement);
  for (const n of ["paper", "ink", "soft", "line", "band", "card", "wait", "memory", "held", "bad", "mark", "sat", "light"])
    colours[n] = style.getPropertyValue("--" + n).trim();
}
const colour = run => `hsl(${(run * 137.508 + 212) % 360} ${colours.sat} ${colours.light})`;
const shown = u => (only === null || u[RUN] === only) && (!picked || picked[BATCH] === u[BATCH] || picked[RUN] === u[RUN]);

// -- Drawing

function draw() {
  if (queued) return;
  queued = true;
  requestAnimationFrame(() => { queued = false; paint(); });
}
function paint() {
  const ratio = window.devicePixelRatio || 1;
  width = canvas.clientWidth; tall = canvas.clientHeight;
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(tall * ratio)) {
    canvas.width = Math.round(width * ratio); canvas.height = Math.round(tall * ratio);
  }
  ink.setTransform(ratio, 0, 0, ratio, 0, 0);
  ink.fillStyle = colours.paper;
  ink.fillRect(0, 0, width, tall);
  const ticks = axis();
  ink.save();
  ink.beginPath(); ink.rect(0, TOP, width, tall - TOP); ink.clip();
  for (const r of rows) {
    const y = TOP + r.y - scroll;
    if (y + r.h < TOP || y > tall) continue;
    r.head !== undefined ? paintHead(r, y) : paintRow(r, y, ticks);
  }
  ink.restore();
  overview();
}
function text(words, px, y, room, fill, font) {
  ink.font = font || "12px system-ui, 'DejaVu Sans', sans-serif";
  ink.fillStyle = fill;
  ink.textBaseline = "middle";
  const all = String(words).slice(0, 200);
  let keep = all.length, cut = all;
  while (keep > 0 && ink.measureText(cut).width > room) { keep = Math.min(keep - 1, Math.floor(keep * .9)); cut = all.slice(0, keep) + "…"; }
  if (room > 8) ink.fillText(cut, px, y);
  return ink.measureText(cut).width;
}
function axis() {
  const want = (view.b - view.a) / Math.max(2, (width - GUTTER) / 110);
  const ten = 10 ** Math.floor(Math.log10(want));
  const step = [1, 2, 5, 10].map(m => m * ten).find(s => s >= want);
  const ticks = [];
  for (let at = Math.ceil(Math.max(0, view.a) / step) * step; at <= view.b; at += step) ticks.push(at);
  const unit = step >= 1e6 || view.b > 2e6 ? [1e6, " s"] : step >= 1e3 || view.b > 5e4 ? [1e3, " ms"] : [1, " µs"];
  const digits = Math.max(0, -Math.floor(Math.log10(step / unit[0]) + 1e-9));
  for (const at of ticks) text((at / unit[0]).toFixed(digits) + unit[1], x(at) + 4, OVERVIEW + AXIS / 2, 100, colours.soft, "11px system-ui, 'DejaVu Sans', sans-serif");
  ink.fillStyle = colours.line;
  ink.fillRect(0, TOP - 1, width, 1);
  return ticks;
}
function paintHead(r, y) {
  ink.fillStyle = colours.band;
  ink.fillRect(0, y, width, r.h);
  let left = 12;
  if (r.run !== undefined) {
    ink.fillStyle = colour(r.run);
    ink.beginPath(); ink.arc(17, y + r.h / 2, 4.5, 0, 7); ink.fill();
    left = 28;
  }
  const used = text(r.head, left, y + r.h / 2, GUTTER - left - 4, colours.ink, "600 12px system-ui, 'DejaVu Sans', sans-serif");
  if (r.note) text(r.note, left + used + 8, y + r.h / 2, Math.max(GUTTER - left - used - 12, 0), colours.soft);
  if (r.run === undefined) return;
  const run = data.runs[r.run], from = Math.max(GUTTER, x(run.arrival)), to = x(run.ended ?? end);
  if (to <= GUTTER) return;
  ink.globalAlpha = .5; ink.fillStyle = colour(r.run);
  ink.fillRect(from, y + r.h / 2 - 1, to - from, 2);
  ink.globalAlpha = 1;
  let free = -Infinity;  // a word that would run into another is left out: the tip has it
  for (const [output, when] of Object.entries(run.first)) {
    if (x(when) < GUTTER) continue;
    ink.fillStyle = colour(r.run);
    ink.beginPath(); ink.moveTo(x(when), y + 5); ink.lineTo(x(when) + 5, y + r.h / 2); ink.lineTo(x(when), y + r.h - 5); ink.fill();
    if (x(when) + 8 < free) continue;
    free = x(when) + 16 + text("first " + output, x(when) + 8, y + r.h / 2 - 6, 90, colours.soft, "10px system-ui, 'DejaVu Sans', sans-serif");
  }
  if (run.ended !== null) {
    const fine = run.reason === "done";
    ink.fillStyle = fine ? colour(r.run) : colours.bad;
    ink.fillRect(to - 1, y + 4, 2, r.h - 8);
    if (!fine) text(run.reason.replace("_", " "), to + 5, y + r.h / 2, 120, colours.bad, "600 11px system-ui, 'DejaVu Sans', sans-serif");
  }
}
function firstIn(r) {
  let low = 0, high = r.ends.length;
  while (low < high) { const mid = (low + high) >> 1; r.ends[mid] < view.a ? low = mid + 1 : high = mid; }
  return low;
}
function lane(r, u, y) {
  if (mode === "run") return [y + 4, r.h - 8];
  const h = (r.h - 4) / u.lanes;
  return [y + 2 + u.lane * h, Math.max(1, h - (h > 4 ? 1 : 0))];
}
function paintRow(r, y, ticks) {
  ink.fillStyle = colours.line;
  for (const at of ticks) if (x(at) >= GUTTER) ink.fillRect(Math.round(x(at)), y, 1, r.h);
  ink.save();
  ink.beginPath(); ink.rect(GUTTER, y, width - GUTTER, r.h); ink.clip();
  const done = [], waits = mode === "run";
  let beyond = 0;
  for (let i = firstIn(r); i < r.units.length; i++) {
    const u = r.units[i], from = startOf(u);
    if (from > view.b && beyond++) break;  // of the first one past the edge the wait may still be seen
    const a = x(from), b = Math.max(a + .8, x(endOf(u)) - .4), n = u.lane || 0, strong = shown(u);
    ink.globalAlpha = strong ? 1 : .13;
    if (waits) {
      const middle = y + r.h / 2, ready = x(u[READY]), mem = x(u[MEMORY]);
      if (u[BLOCKED] === 2 && ready - x(u[SINCE]) > 1) {
        ink.strokeStyle = colours.held; ink.lineWidth = 2; ink.setLineDash([2, 3]);
        ink.beginPath(); ink.moveTo(Math.max(x(u[SINCE]), GUTTER - 9), middle); ink.lineTo(ready, middle); ink.stroke(); ink.setLineDash([]);
      }
      if (mem - ready > 1) { ink.fillStyle = colours.memory; ink.fillRect(ready, middle - 1.5, mem - ready, 3); }
      if (a - mem > 1) { ink.fillStyle = colours.wait; ink.fillRect(mem, middle - 1.5, a - mem, 3); }
    }
    if (b <= (done[n] ?? -1) && u !== picked) continue;  // under a bar of the same pixel
    done[n] = Math.floor(b * 2) / 2;
    const [top, h] = lane(r, u, y);
    ink.fillStyle = colour(u[RUN]);
    if (b - a > 5 && h > 6) { ink.beginPath(); ink.roundRect(a, top, b - a, h, 2.5); ink.fill(); } else ink.fillRect(a, top, b - a, h);
    if (bad(u) || data.batches[u[BATCH]][ANSWERED] === null) {
      ink.strokeStyle = bad(u) ? colours.bad : colours.ink; ink.lineWidth = 2;
      ink.strokeRect(a + 1, top + 1, Math.max(0, b - a - 2), Math.max(0, h - 2));
    }
    if (u === hover || (picked && picked[BATCH] === u[BATCH])) {
      ink.strokeStyle = colours.mark; ink.lineWidth = u === picked || u === hover ? 2 : 1.2;
      ink.strokeRect(a, top, b - a, h);
    }
    const left = Math.max(a, GUTTER) + 5, room = b - left - 4, words = data.texts[u[TOLD]];
    if (h > 11 && room > words.length * 5) text(words, left, top + h / 2 + .5, room, "#fff", "600 11px system-ui, 'DejaVu Sans', sans-serif");
  }
  ink.globalAlpha = 1;
  ink.restore();
  ink.fillStyle = colours.paper;
  ink.fillRect(0, y, GUTTER, r.h);
  text(r.label, 28, y + r.h / 2, GUTTER - 80, colours.ink);
  text(r.units.length + "", GUTTER - 44, y + r.h / 2, 40, colours.soft, "11px system-ui, 'DejaVu Sans', sans-serif");
  ink.fillStyle = colours.line;
  ink.fillRect(GUTTER - 1, y, 1, r.h);
}
const OX = px => GUTTER + px / end * (width - GUTTER - 12);
function overview() {
  ink.fillStyle = colours.paper;
  ink.fillRect(0, 0, width, OVERVIEW);
  text("executors", 12, OVERVIEW / 2, GUTTER - 20, colours.soft, "11px system-ui, 'DejaVu Sans', sans-serif");
  const n = Math.max(1, data.executors.length), h = (OVERVIEW - 10) / n, done = [];
  for (const b of data.batches) {
    const e = b[EXECUTOR], a = OX(b[STARTED]), z = Math.max(a + .7, OX(b[ANSWERED] ?? end));
    if (z <= (done[e] ?? -1)) continue;
    done[e] = z;
    ink.fillStyle = colours.wait;
    ink.fillRect(a, 5 + e * h, z - a, Math.max(1, h - 1));
  }
  const a = Math.max(GUTTER, OX(view.a)), b = Math.min(width - 2, OX(view.b));
  ink.strokeStyle = colours.ink; ink.lineWidth = 1; ink.globalAlpha = .8;
  ink.strokeRect(a + .5, 2.5, Math.max(3, b - a), OVERVIEW - 5);
  ink.globalAlpha = 1;
}
