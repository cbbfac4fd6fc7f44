// A page without a screen, just enough of one for the timeline's script: elements keep text, the canvas counts what is painted.
"use strict";
const fs = require("fs"), vm = require("vm");
let painted = 0;
const told = [], keys = [], frames = [];
function element(id) {
  const made = {
    children: [], style: {}, dataset: {}, hidden: false, clientWidth: 1200, clientHeight: 700, offsetWidth: 300, offsetHeight: 120, handlers: {},
    classList: {add() {}, remove() {}, toggle() {}},
    append(...more) { for (const m of more) { this.children.push(m); if (typeof m === "string") told.push(m); } },
    replaceChildren() { this.children = []; },
    addEventListener(name, does) { this.handlers[name] = does; },
    getBoundingClientRect: () => ({left: 0, top: 0}), setPointerCapture() {}, focus() {},
    getContext: () => new Proxy({measureText: s => ({width: 7 * s.length})}, {
      get: (has, name) => has[name] ?? (() => { painted++; }), set: () => true,
    }),
    get textContent() { return this.text ?? ""; }, set textContent(t) { this.text = t; told.push(String(t)); },
  };
  if (id === "data") made.text = fs.readFileSync("data.json", "utf8");
  return made;
}
const byId = {};
const world = {
  document: {getElementById: id => byId[id] ??= element(id), createElement: () => element(), documentElement: element()},
  getComputedStyle: () => ({getPropertyValue: () => " 50% "}), matchMedia: () => ({matches: true}),
  requestAnimationFrame: does => frames.push(does), innerWidth: 1200, innerHeight: 800, devicePixelRatio: 2,
  addEventListener: (name, does) => { if (name === "keydown") keys.push(does); }, console,
};
world.window = world;
const flush = () => { while (frames.length) frames.shift()(); };
vm.runInNewContext(fs.readFileSync("page.js", "utf8"), world);
flush();
const on = (name, event) => { byId.chart.handlers[name]({preventDefault() {}, pointerId: 1, deltaX: 0, deltaY: 0, deltaMode: 0, ...event}); flush(); };
const press = key => { keys[0]({key, preventDefault() {}}); flush(); };
for (let round = 0; round < 2; round++) {
  for (let y = 5; y < 700; y += 9) for (let x = 20; x < 1200; x += 45) on("pointermove", {clientX: x, clientY: y});
  for (const y of [90, 200, 400]) { on("pointerdown", {clientX: 300, clientY: y}); on("pointerup", {clientX: 300, clientY: y}); }
  on("pointerdown", {clientX: 500, clientY: 300}); on("pointermove", {clientX: 400, clientY: 250}); on("pointerup", {clientX: 400, clientY: 250});
  on("pointerdown", {clientX: 500, clientY: 10}); on("pointermove", {clientX: 600, clientY: 12}); on("pointerup", {});
  for (const e of [{deltaY: -300}, {deltaY: 900}, {deltaX: 50}, {deltaY: 50, shiftKey: true}]) on("wheel", {clientX: 700, clientY: 300, ...e});
  for (const key of ["w", "w", "w", "a", "d", "s", "ArrowDown", "ArrowUp", "n", "n", "p", "m", "?", "t", "0", "Escape", "g"]) press(key);
}
for (let i = 0; i < 60; i++) press("w");  // as near as it goes
process.stdout.write(JSON.stringify({painted, told}));
