{
  // The page: it decodes the file with the functions above, and runs the network on what is drawn.
  const page = JSON.parse(document.getElementById("data").textContent);
  const at = id => document.getElementById(id), colour = name => getComputedStyle(document.documentElement).getPropertyValue("--" + name);
  const [height, width] = page.shape.slice(1), number = n => n.toLocaleString("en");
  const bytesOf64 = text => Uint8Array.from(atob(text), c => c.charCodeAt(0));
  const tensors = new Map();

  // The network. Most weights are zero, so each layer keeps only the others, and where they are.

  const valuesOf = name => {
    const tensor = tensors.get(page.tied[name] ?? name);
    if (!tensor) throw new Error(`the file has no tensor ${name}`);
    return { values: toFloat32(tensor), shape: tensor.shape };
  };

  function nonzeros(values, rows) {
    const columns = values.length / rows;
    return Array.from({ length: rows }, (_, i) => {
      const places = [], weights = [];
      for (let j = 0; j < columns; j++) {
        if (values[i * columns + j] !== 0) { places.push(j); weights.push(values[i * columns + j]); }
      }
      return { places: Int32Array.from(places), weights: Float32Array.from(weights) };
    });
  }

  const makers = {
    linear({ weight, bias }) {
      const { values, shape } = valuesOf(weight), units = nonzeros(values, shape[0]), offsets = bias && valuesOf(bias).values;
      return ({ data }) => {
        const out = new Float32Array(units.length);
        units.forEach(({ places, weights }, i) => {
          let sum = offsets ? offsets[i] : 0;
          for (let k = 0; k < places.length; k++) sum += weights[k] * data[places[k]];
          out[i] = sum;
        });
        return { data: out, shape: [units.length] };
      };
    },
    conv({ weight, bias, stride, padding }) {
      const { values, shape: [n, , rows, columns] } = valuesOf(weight), units = nonzeros(values, n), offsets = bias && valuesOf(bias).values;
      return ({ data, shape: [, h, w] }) => {
        const high = Math.floor((h + 2 * padding[0] - rows) / stride[0]) + 1, wide = Math.floor((w + 2 * padding[1] - columns) / stride[1]) + 1;
        const out = new Float64Array(n * high * wide);
        units.forEach(({ places, weights }, i) => {
          const own = out.subarray(i * high * wide, (i + 1) * high * wide);
          if (offsets) own.fill(offsets[i]);
          for (let k = 0; k < places.length; k++) {
            const channel = Math.floor(places[k] / (rows * columns)), down = Math.floor(places[k] / columns) % rows - padding[0];
            const right = places[k] % columns - padding[1];
            for (let y = 0; y < high; y++) {
              const from = y * stride[0] + down;
              if (from < 0 || from >= h) continue;
              for (let x = 0; x < wide; x++) {
                const column = x * stride[1] + right;
                if (column >= 0 && column < w) own[y * wide + x] += weights[k] * data[(channel * h + from) * w + column];
              }
            }
          }
        });
        return { data: Float32Array.from(out), shape: [n, high, wide] };
      };
    },
    pool: ({ size, stride, padding }) => ({ data, shape: [n, h, w] }) => {
      const high = Math.floor((h + 2 * padding[0] - size[0]) / stride[0]) + 1, wide = Math.floor((w + 2 * padding[1] - size[1]) / stride[1]) + 1;
      const out = new Float32Array(n * high * wide).fill(-Infinity);
      for (let c = 0; c < n; c++) for (let y = 0; y < high; y++) for (let x = 0; x < wide; x++) {
        const place = (c * high + y) * wide + x;
        for (let dy = 0; dy < size[0]; dy++) for (let dx = 0; dx < size[1]; dx++) {
          const [row, column] = [y * stride[0] + dy - padding[0], x * stride[1] + dx - padding[1]];
          if (row >= 0 && row < h && column >= 0 && column < w) out[place] = Math.max(out[place], data[(c * h + row) * w + column]);
        }
      }
      return { data: out, shape: [n, high, wide] };
    },
    relu: () => ({ data, shape }) => ({ data: data.map(x => Math.max(0, x)), shape }),
    flatten: () => ({ data }) => ({ data, shape: [data.length] }),
  };

  let layers = null;
  /** The outputs of the network for the values of an image. */
  function logits(image) {
    layers ??= page.layers.map(layer => makers[layer.kind](layer));
    return layers.reduce((x, layer) => layer(x), { data: Float32Array.from(image), shape: page.shape }).data;
  }

  function probabilities(outputs) {
    const most = Math.max(...outputs), powers = Array.from(outputs, x => Math.exp(x - most)), sum = powers.reduce((a, b) => a + b);
    return powers.map(p => p / sum);
  }

  // The drawing: strokes in units of the network's pixels

  const ink = at("ink"), surface = ink.getContext("2d", { willReadFrequently: true }), seen = at("seen"), SCALE = 10, PEN = Math.max(height, width) / 12;
  ink.width = width * SCALE;
  ink.height = height * SCALE;
  ink.style.aspectRatio = `${width} / ${height}`;
  let strokes = [], example = null, drawing = null, pen = { x: width / 2, y: height / 2, down: false, shown: false };

  function paint() {
    const c = surface;
    c.clearRect(0, 0, ink.width, ink.height);
    if (example) return paintImage(c, example, SCALE);
    c.lineCap = c.lineJoin = "round";
    c.lineWidth = PEN * SCALE;
    c.strokeStyle = colour("ink");
    for (const stroke of strokes) {
      c.beginPath();
      stroke.forEach(([x, y], k) => k ? c.lineTo(x * SCALE, y * SCALE) : c.moveTo(x * SCALE, y * SCALE));
      if (stroke.length === 1) c.lineTo(stroke[0][0] * SCALE, stroke[0][1] * SCALE);
      c.stroke();
    }
  }

  /** Draw shares of ink, 0 to 1, a square for a pixel. */
  function paintImage(c, levels, scale) {
    c.fillStyle = colour("ink");
    levels.forEach((level, k) => {
      c.globalAlpha = level;
      c.fillRect(k % width * scale, Math.floor(k / width) * scale, scale, scale);
    });
    c.globalAlpha = 1;
  }

  /**
   * What MNIST's makers did: the drawing is scaled so that its longer side takes 20 of 28 pixels, and its centre of mass
   * comes to the middle. Each pixel is the mean of the ink that falls on it.
   */
  function normalized() {
    const { data } = surface.getImageData(0, 0, ink.width, ink.height), out = new Float32Array(width * height);
    let [left, top, right, bottom] = [ink.width, ink.height, -1, -1];
    for (let y = 0; y < ink.height; y++) for (let x = 0; x < ink.width; x++) {
      if (data[4 * (y * ink.width + x) + 3] < 128) continue;
      [left, top, right, bottom] = [Math.min(left, x), Math.min(top, y), Math.max(right, x), Math.max(bottom, y)];
    }
    if (right < 0) return out;
    const step = Math.max((right + 1 - left) / width, (bottom + 1 - top) / height) * 28 / 20;  // pixels of the drawing for one
    const sums = [0, 0, 0];
    for (let y = top; y <= bottom; y++) for (let x = left; x <= right; x++) {
      const level = data[4 * (y * ink.width + x) + 3];
      sums[0] += level; sums[1] += level * (x + .5); sums[2] += level * (y + .5);
    }
    const from = [sums[1] / sums[0] - step * width / 2, sums[2] / sums[0] - step * height / 2];
    const level = (x, y) => x < 0 || y < 0 || x >= ink.width || y >= ink.height ? 0 : data[4 * (y * ink.width + x) + 3];
    for (let k = 0; k < out.length; k++) {
      const [x0, y0] = [from[0] + k % width * step, from[1] + Math.floor(k / width) * step];
      let sum = 0, area = 0;
      for (let y = Math.floor(y0); y < y0 + step; y++) for (let x = Math.floor(x0); x < x0 + step; x++) {
        const share = (Math.min(x + 1, x0 + step) - Math.max(x, x0)) * (Math.min(y + 1, y0 + step) - Math.max(y, y0));
        sum += share * level(x, y);
        area += share;
      }
      out[k] = sum / area / 255;
    }
    return out;
  }

  let waiting = false, speaking;
  function changed() {
    if (waiting) return;
    waiting = true;
    setTimeout(() => { waiting = false; paint(); answer(); }, 8);
  }

  function answer() {
    const levels = example ?? normalized(), empty = levels.every(level => level === 0);
    const c = seen.getContext("2d");
    seen.width = width;
    seen.height = height;
    paintImage(c, levels, 1);
    const shares = empty ? null : probabilities(logits(levels.map(level => page.low + (page.high - page.low) * level)));
    const best = shares ? shares.indexOf(Math.max(...shares)) : -1;
    [...at("bars").tBodies[0].rows].forEach((row, k) => {
      row.className = k === best ? "best" : "";
      row.querySelector("i").style.width = shares ? `${100 * shares[k]}%` : "0";
      row.lastChild.textContent = shares ? `${(100 * shares[k]).toFixed(1)}%` : "";
    });
    const text = shares ? `${best}, at ${(100 * shares[best]).toFixed(1)}%` : page.hint;
    at("says").textContent = text;
    clearTimeout(speaking);
    speaking = setTimeout(() => { at("spoken").textContent = text; }, 700);
    document.documentElement.dataset.best = best;
  }

  const place = event => {
    const box = ink.getBoundingClientRect(), border = (box.width - ink.clientWidth) / 2;
    return [(event.clientX - box.left - border) / ink.clientWidth * width, (event.clientY - box.top - border) / ink.clientHeight * height];
  };
  const begin = point => { example = null; drawing = [point]; strokes.push(drawing); changed(); };
  ink.addEventListener("pointerdown", event => {
    if (event.button !== 0) return;
    ink.setPointerCapture(event.pointerId);
    begin(place(event));
  });
  ink.addEventListener("pointermove", event => {
    if (!drawing || !ink.hasPointerCapture(event.pointerId)) return;
    const points = event.getCoalescedEvents?.() ?? [];
    drawing.push(...(points.length ? points : [event]).map(place));
    changed();
  });
  for (const end of ["pointerup", "pointercancel"]) ink.addEventListener(end, () => { drawing = null; });
  const clear = () => { strokes = []; example = drawing = null; changed(); };
  at("clear").addEventListener("click", clear);
  at("undo").addEventListener("click", () => { example = drawing = null; strokes.pop(); changed(); });
  ink.addEventListener("keydown", event => {
    const move = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
    if (!move && event.key !== " " && event.key !== "Delete") return;
    event.preventDefault();
    if (event.key === "Delete") { pen.down = false; return clear(); }
    if (event.key === " ") pen.down = !pen.down;
    if (event.key === " " && pen.down) begin([pen.x, pen.y]);
    if (event.key === " " && !pen.down) drawing = null;
    if (!move) return;
    pen.x = Math.min(width, Math.max(0, pen.x + move[0]));
    pen.y = Math.min(height, Math.max(0, pen.y + move[1]));
    if (pen.down && drawing) { drawing.push([pen.x, pen.y]); changed(); }
    at("spoken").textContent = `pen ${pen.down ? "down" : "up"}, column ${Math.round(pen.x)}, row ${Math.round(pen.y)}`;
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { changed(); paintFirst(); });
  addEventListener("resize", paintFirst);

  for (let k = 0; k < page.classes; k++) {
    const row = at("bars").tBodies[0].insertRow();
    row.innerHTML = '<th scope="row"></th><td><div class="bar"><i></i></div></td><td></td>';
    row.firstChild.textContent = k;
  }
  const labels = Object.keys(page.examples);
  if (labels.length) at("examples").append(Object.assign(document.createElement("span"), { textContent: "Examples" }));
  for (const label of labels) {
    const button = Object.assign(document.createElement("button"), { type: "button", textContent: label });
    button.setAttribute("aria-label", `Example of ${label}`);
    button.addEventListener("click", () => {
      strokes = [];
      drawing = null;
      example = Float32Array.from(bytesOf64(page.examples[label]), level => level / 255);
      changed();
    });
    at("examples").append(button);
  }

  // The first layer: a tile for each unit, blue for positive weights, orange for negative ones

  const first = page.layers.find(layer => layer.weight), MOST_TILES = 1024, TILE = 96, HIGH = 400;  // pixels of a page
  function paintFirst() {
    const tensor = tensors.get(page.tied[first.weight] ?? first.weight);
    if (!tensor) return;
    const values = toFloat32(tensor), [rows, columns] = first.kind === "conv" ? tensor.shape.slice(2) : [height, width], size = rows * columns;
    const units = Math.floor(values.length / size), canvas = at("first"), c = canvas.getContext("2d");
    const reading = Array.from({ length: units }, (_, k) => k).filter(k => values.subarray(k * size, (k + 1) * size).some(x => x !== 0));
    const shown = reading.slice(0, MOST_TILES), tiles = Math.max(1, shown.length);
    // A weight is a square of whole pixels of the screen: as many as the width has room for, within a height.
    const ratio = devicePixelRatio || 1, room = Math.max(1, canvas.parentElement.clientWidth - 18) * ratio;
    const wideFor = dot => Math.max(1, Math.min(tiles, Math.floor((room + 1) / (columns * dot + 1))));
    let dot = Math.max(1, Math.floor(TILE * ratio / columns));
    while (dot > 1 && Math.ceil(tiles / wideFor(dot)) * (rows * dot + 1) > HIGH * ratio) dot--;
    const high = Math.ceil(tiles / wideFor(dot)), wide = Math.ceil(tiles / high), [across, down] = [columns * dot + 1, rows * dot + 1];  // a tile and its line
    canvas.width = wide * across - 1;
    canvas.height = high * down - 1;
    canvas.style.width = `${canvas.width / ratio}px`;
    const most = values.reduce((a, b) => Math.max(a, Math.abs(b)), 0) || 1, [positive, negative] = [colour("series-0"), colour("series-1")];
    c.fillStyle = colour("line");
    for (let k = 1; k < wide; k++) c.fillRect(k * across - 1, 0, 1, canvas.height);
    for (let k = 1; k < high; k++) c.fillRect(0, k * down - 1, canvas.width, 1);
    for (let tile = 0; tile < shown.length; tile++) for (let k = 0; k < size; k++) {
      const value = values[shown[tile] * size + k];
      if (value === 0) continue;
      c.fillStyle = value > 0 ? positive : negative;
      c.globalAlpha = .25 + .75 * Math.abs(value) / most;
      c.fillRect(tile % wide * across + k % columns * dot, Math.floor(tile / wide) * down + Math.floor(k / columns) * dot, dot, dot);
    }
    c.globalAlpha = 1;
    const used = tensor.nNonzero ?? values.reduce((n, x) => n + (x !== 0), 0), n = values.length;
    const text = `${first.weight}: ${number(used)} of ${number(n)} weights are not zero, with ${tensor.codebook ? tensor.codebook.length - 1 : "their own"} values. ` +
      `A tile is what one unit reads of the image, ${rows} x ${columns}: blue is positive, orange is negative.` +
      (units > reading.length ? ` ${number(units - reading.length)} of ${number(units)} units read nothing and have no tile.` : "") +
      (reading.length > tiles ? ` These are the first ${number(tiles)}.` : "");
    at("first-about").textContent = text;
    canvas.setAttribute("aria-label", text);
  }

  // Decode, tensor by tensor. The first layer is on the screen before the next tensor is decoded.

  async function start() {
    const options = page.layout ? { layout: page.layout, tied: page.tied } : {}, steps = stream(bytesOf64(page.file), options);
    let spent = 0;
    for (;;) {
      const begun = performance.now(), { done, value } = await steps.next();
      spent += performance.now() - begun;
      if (done) break;
      tensors.set(value.name, value);
      if (value.name !== (page.tied[first.weight] ?? first.weight)) continue;
      paintFirst();
      await new Promise(resolve => setTimeout(resolve));
    }
    let weights = 0, used = 0;
    for (const { data } of tensors.values()) {
      weights += data.length;
      for (const x of data) if (x) used++;
    }
    at("weights-held").textContent = number(weights);
    at("weights-about").textContent = `weights, of which ${(100 * used / weights).toFixed(1)}% are not zero`;
    at("decoded").textContent = `${spent < 10 ? spent.toFixed(1) : Math.round(spent)} ms`;
    answer();
    // For the console of the browser, and for tests.
    globalThis.classifier = { tensors, logits, probabilities, input: () => { paint(); return example ?? normalized(); }, milliseconds: spent };
    document.documentElement.dataset.state = "ready";
  }

  start().catch(error => {
    at("says").textContent = `The file cannot be used: ${error.message}`;
    document.documentElement.dataset.state = "failed";
  });
}
