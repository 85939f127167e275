"use strict";
const data = JSON.parse(document.getElementById("data").textContent);

// While a run is under way, what the reader has chosen outlives the page: a newer one takes it over.
const live = data.version !== null;
const chosen = live && JSON.parse(sessionStorage.getItem("chosen")) || {};
if (live) addEventListener("pagehide", () => sessionStorage.setItem("chosen", JSON.stringify(chosen)));

// Tooltips: what is under the pointer, or was tapped, says what it is.
const tip = document.getElementById("tip");
function showTip(event, text) {
  tip.textContent = text;
  tip.style.display = text ? "block" : "none";
  tip.style.left = Math.max(4, Math.min(event.clientX + 12, innerWidth - tip.offsetWidth - 4)) + "px";
  tip.style.top = Math.max(4, Math.min(event.clientY + 14, innerHeight - tip.offsetHeight - 4)) + "px";
}
for (const kind of ["pointermove", "pointerdown"]) {
  document.addEventListener(kind, event => {
    const found = event.target.closest("[data-tip]");
    if (event.target.id !== "screen") showTip(event, found ? found.dataset.tip : "");
  });
}

// The table sorts by the column whose heading is clicked; a second click turns it round.
function sort(head, up) {
  for (const other of head.parentNode.children) other.setAttribute("aria-sort", "none");
  head.setAttribute("aria-sort", up > 0 ? "ascending" : "descending");
  const value = row => row.children[head.cellIndex].dataset.value;
  const order = (a, b) => {
    const [x, y] = [value(a), value(b)];
    if (x === "" || y === "") return (x === "") - (y === "");  // what is not known comes last
    return up * (isNaN(x) || isNaN(y) ? x.localeCompare(y, "en", { numeric: true }) : x - y);
  };
  const body = head.closest("table").tBodies[0];
  body.append(...[...body.rows].sort(order));
  chosen.sort = [head.cellIndex, up];
}
for (const head of document.querySelectorAll("th")) {
  head.addEventListener("click", () => sort(head, head.getAttribute("aria-sort") === "descending" ? 1 : -1));
  if (chosen.sort && head.cellIndex === chosen.sort[0]) sort(head, chosen.sort[1]);
}

// The film: weights before against weights at the slider's epoch, with histogram and bands.
function film(films) {
  const [screen, part, kind, slider, now, play] =
    ["screen", "part", "kind", "epoch", "now", "play"].map(id => document.getElementById(id));
  const decoded = new Map();
  const unpack = (text, Kind) => {
    if (!decoded.has(text)) decoded.set(text, new Kind(Uint8Array.from(atob(text), c => c.charCodeAt(0)).buffer));
    return decoded.get(text);
  };
  const colour = name => getComputedStyle(document.documentElement).getPropertyValue("--" + name);
  const ticks = (low, high) => {
    const rough = (high - low) / 5, power = 10 ** Math.floor(Math.log10(rough));
    const step = power * [1, 2, 5, 10].find(n => n * power >= rough), found = [];
    for (let k = Math.ceil(low / step); k * step <= high; k++) found.push([k * step, String(+(k * step).toPrecision(6))]);
    return found;
  };
  let layout;

  function draw() {
    const f = films[part.selectedIndex], e = +slider.value, latent = kind.selectedIndex === 1;
    const [low, high] = f.limits, ratio = devicePixelRatio || 1;
    const width = screen.clientWidth, height = screen.clientHeight;
    screen.width = width * ratio; screen.height = height * ratio;
    const c = screen.getContext("2d");
    c.scale(ratio, ratio);
    const left = 64, right = width - Math.min(150, width * .25), end = width - 10, top = 12, bottom = height - 44;
    const y = w => bottom - (w - low) / (high - low) * (bottom - top);
    const [least, greatest] = f.ends[0], pad = .05 * (greatest - least), from = least - pad, to = greatest + pad;  // of the weights before
    const x = w => left + (w - from) / (to - from) * (right - left);
    layout = { f, e, y, top, bottom };
    c.font = "12px system-ui, sans-serif"; c.textBaseline = "middle";
    f.mean[e].forEach((mean, k) => {
      if (!latent || !f.counts[e][k] && k) return;
      c.globalAlpha = .15; c.fillStyle = c.strokeStyle = colour(k ? "series-1" : "faint");
      const [y1, y0] = [y(mean + 2 * f.std[e][k]), y(mean - 2 * f.std[e][k])].map(v => Math.min(bottom, Math.max(top, v)));
      c.fillRect(left, y1, end - left, y0 - y1);
      c.globalAlpha = .8; c.beginPath(); c.moveTo(left, y(mean)); c.lineTo(end, y(mean)); c.stroke();
    });
    const before = unpack(f.sample[0], Uint16Array), after = unpack(f.sample[e], Uint16Array);
    const index = unpack(f.index[e], f.mean[0].length > 256 ? Uint16Array : Uint8Array);
    const dot = latent ? 2 : 8;  // values of the file are the same for many weights
    c.globalAlpha = .55; c.fillStyle = colour("series-0");
    for (let i = 0; i < after.length; i++) {
      const height = latent ? bottom - after[i] / 32767 * (bottom - top) : y(f.values[e][index[i]]);
      c.fillRect(x(low + before[i] / 32767 * (high - low)) - 1, height - dot / 2, 2, dot);
    }
    const all = latent ? f.histograms : f.held, most = Math.log1p(Math.max(...all.flat()));
    const bar = (n, from, thick) => c.fillRect(right + 8, from, Math.log1p(n) / most * (end - right - 8), thick);
    if (latent) {
      const [first, last] = f.ends[e], bin = (last - first) / all[e].length;
      all[e].forEach((n, k) => bar(n, y(first + (k + 1) * bin), y(0) - y(bin)));
    } else {
      c.globalAlpha = .35; c.strokeStyle = colour("faint");
      all[e].forEach((n, k) => {
        if (n) { c.beginPath(); c.moveTo(left, y(f.values[e][k])); c.lineTo(end, y(f.values[e][k])); c.stroke(); }
      });
      c.globalAlpha = .8;
      all[e].forEach((n, k) => bar(n, y(f.values[e][k]) - 4, 8));
    }
    c.globalAlpha = 1; c.fillStyle = colour("ink"); c.strokeStyle = colour("faint");
    c.strokeRect(left, top, right - left, bottom - top);
    c.textAlign = "right";
    for (const [w, text] of ticks(low, high)) c.fillText(text, left - 6, y(w));
    c.textAlign = "center";
    for (const [w, text] of ticks(from, to)) c.fillText(text, x(w), bottom + 14);
    c.fillText("before", (left + right) / 2, bottom + 32);
    c.fillText(width > 500 ? "weights (log)" : "(log)", (right + 8 + end) / 2, bottom + 14);
    c.save(); c.translate(10, (top + bottom) / 2); c.rotate(-Math.PI / 2); c.fillText(latent ? "latent weight" : "in the file", 0, 0); c.restore();
    const number = n => n.toLocaleString("en"), used = f.counts[e].filter(n => n).length;
    const zero = f.held[e][f.values[e].indexOf(0)] ?? 0;
    now.textContent = `${f.epochs[e]}: ${f.phases[e] && f.phases[e] + " phase, "}${used} component${used === 1 ? "" : "s"} in use, ` +
      `${number(f.weights - zero)} of ${number(f.weights)} weights are not zero` +
      (e === f.epochs.length - 1 && f.left !== null && f.left !== f.weights - zero
        ? `; in the file ${number(f.left)}, after simplifying` : "");
    screen.setAttribute("aria-label", `Weights of ${f.name}, before against ${kind.value}, at ${data.counted} ${now.textContent}`);
    screen.dataset.frame = e;
    Object.assign(chosen, { part: part.selectedIndex, kind: kind.selectedIndex, epoch: e === f.epochs.length - 1 ? null : f.epochs[e] });
  }

  let timer;
  function stop() { clearInterval(timer); timer = undefined; play.textContent = "Play"; chosen.plays = false; }
  function start() {
    play.textContent = "Stop";
    chosen.plays = true;
    timer = setInterval(() => {
      slider.value = +slider.value + 1;
      draw();
      if (+slider.value === +slider.max) stop();
    }, 180);
  }
  play.addEventListener("click", () => {
    if (timer) return stop();
    if (+slider.value === +slider.max) slider.value = 0;
    draw();
    start();
  });
  slider.addEventListener("input", () => { stop(); draw(); });
  for (const choice of [part, kind]) choice.addEventListener("change", draw);
  addEventListener("resize", draw);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  screen.addEventListener("pointerleave", event => {
    if (event.pointerType === "mouse") showTip(event, "");  // a finger leaves where it taps
  });
  for (const moved of ["pointermove", "pointerdown"]) screen.addEventListener(moved, event => {
    const { f, e, y, top, bottom } = layout;
    const at = Math.min(bottom, Math.max(top, event.offsetY));
    const near = f.mean[e].map((m, k) => k).filter(k => f.counts[e][k])
      .sort((a, b) => Math.abs(y(f.mean[e][a]) - at) - Math.abs(y(f.mean[e][b]) - at))[0];
    showTip(event, `component at ${f.mean[e][near]}, standard deviation ${f.std[e][near]}, ` +
      `mixing ${f.mixing[e][near]}, ${f.counts[e][near].toLocaleString("en")} weights`);
  });
  part.selectedIndex = Math.min(chosen.part ?? part.selectedIndex, films.length - 1);
  kind.selectedIndex = chosen.kind ?? 0;
  const frame = films[0].epochs.indexOf(chosen.epoch);  // -1 at the last one, which the newest then is
  if (frame >= 0) slider.value = frame;
  draw();
  if (chosen.plays) start();
}
if (data.film.length) film(data.film);

// A link to the details opens them.
const details = document.querySelector("#details details");
for (const link of document.querySelectorAll('a[href="#details"]')) link.addEventListener("click", () => { details.open = true; });

// While the run is under way: a newer page replaces this one, and the last is the report.
if (live) {
  const asking = setInterval(async () => {
    try {
      const version = await (await fetch("version")).text();
      if (version !== data.version) location.reload();
    } catch {  // the server has gone, before it could give the report
      clearInterval(asking);
      verdict.textContent = "The run has ended, or was stopped. For its report: ";
      verdict.append(Object.assign(document.createElement("code"), { textContent: data.report }));
    }
  }, 1000);
}
