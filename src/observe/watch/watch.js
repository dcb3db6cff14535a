'use strict';
/* The page of weft watch. While it is visible, it requests new records every two seconds, keeps all that it has received, and draws.
 *
 * Text from a run (names, events, configuration) goes into the page as text nodes only, never as markup. */
(() => {
  const PERIOD = 2000, LATE = 10000, HEIGHT = { wide: 300, small: 190 };
  const BOX = { left: 54, right: 12, top: 10, bottom: 24 };
  const token = new URLSearchParams(location.search).get('token');
  const $ = (id) => document.getElementById(id);
  const runs = [];

  /* ---- requests to weft ---- */

  async function ask(path, words) {
    const query = new URLSearchParams(words);
    if (token) query.set('token', token);
    const answer = await fetch(path + '?' + query, { cache: 'no-store', signal: AbortSignal.timeout(LATE) });
    if (!answer.ok) throw new Error(answer.status === 403 ? 'the token is not right' : 'status ' + answer.status);
    return answer;
  }

  function take(run, told) {
    if (told.all) run.points = told.points;
    else for (const key in run.points) run.points[key].push(...told.points[key]);
    run.told = told;
    meetNamed(run);
  }

  async function update(run) {
    const steps = run.points ? run.points.step : [];
    const words = { run: run.index };
    if (run.told) Object.assign(words, { version: run.told.version, after: steps.length ? steps[steps.length - 1] : -1 });
    take(run, await (await ask('data', words)).json());
  }

  /* ---- numbers ---- */

  const known = (v) => typeof v === 'number' && Number.isFinite(v);
  const count = (v) => (known(v) ? Math.round(v).toLocaleString('en') : '–');
  const digits = (v, n) => (known(v) ? v.toFixed(n) : '–');
  const bytes = (v) => {
    if (!known(v) || v <= 0) return '–';
    const i = Math.min(4, Math.floor(Math.log2(v) / 10));
    return (v / 1024 ** i).toFixed(i ? 2 : 0) + ' ' + ['B', 'KiB', 'MiB', 'GiB', 'TiB'][i];
  };
  const duration = (s) => {
    if (!known(s)) return '–';
    if (s < 1) return +(1000 * s).toPrecision(3) + ' ms';
    if (s < 60) return s.toFixed(s < 10 ? 1 : 0) + ' s';
    const m = Math.floor(s / 60), h = Math.floor(m / 60), d = Math.floor(h / 24);
    return d ? `${d} d ${h % 24} h` : h ? `${h} h ${m % 60} m` : `${m} m ${Math.floor(s % 60)} s`;
  };
  const short = (v) => {
    if (!known(v)) return 'not finite';
    const a = Math.abs(v);
    const thousands = a >= 1e4 ? Math.min(4, Math.floor(Math.log10(a) / 3)) : 0;
    if (thousands) return +(v / 1000 ** thousands).toPrecision(4) + ['', 'k', 'M', 'G', 'T'][thousands];
    return a && a < 1e-3 ? v.toExponential(3) : String(+v.toPrecision(5));
  };

  /* ---- elements ---- */

  function element(name, attributes, ...children) {
    const svg = ['svg', 'path', 'text', 'circle', 'g'].includes(name);
    const e = svg ? document.createElementNS('http://www.w3.org/2000/svg', name) : document.createElement(name);
    for (const key in attributes) e.setAttribute(key, attributes[key]);
    e.append(...children);
    return e;
  }
  const dot = (run) => element('i', { class: 'dot ' + run.style });
  const shown = () => runs.filter((r) => r.shown && r.told);

  function table(heads, rows) {
    const cell = (name, [text, kind]) => element(name, kind ? { class: kind } : {}, ...[text].flat());
    return element('div', { class: 'scroll', tabindex: 0 }, element('table', {},
      element('thead', {}, element('tr', {}, ...heads.map((h) => cell('th', h)))),
      element('tbody', {}, ...rows.map((r) => element('tr', {}, ...r.map((c) => cell('td', c)))))));
  }

  /* ---- the cards ---- */

  const ENDS = { finished: 'good', stopped: 'warn', failed: 'bad', diverged: 'bad' };
  function stateOf(told) {
    if (ENDS[told.state]) return [told.state, ENDS[told.state]];
    if (told.read < 1) return ['reading ' + Math.floor(100 * told.read) + '%', 'plain'];
    if (told.pid) return ['running', 'good'];
    const age = told.now - told.last.wall;
    return [told.last.step ? `no process here, last step ${duration(age)} ago` : 'no steps yet', 'plain'];
  }

  function facts(told) {
    const l = told.last, list = [];
    const add = (name, value, note) => list.push([name, value, note]);
    add('step', count(l.step), l.total_steps ? 'of ' + count(l.total_steps) : '');
    add('loss', digits(l.loss, 4), 'training');
    if (known(l.validation)) add('validation', digits(l.validation, 4), known(l.bits_per_byte) ? digits(l.bits_per_byte, 3) + ' bits per byte' : '');
    if (!l.step) return list;
    add('tokens per second', count(l.rate), known(l.mfu) ? 'MFU ' + digits(100 * l.mfu, 1) + '%' : '');
    add('tokens', short(l.tokens), known(l.epoch) ? digits(l.epoch, 2) + ' epochs' : '');
    if (l.device_memory) add('device memory', bytes(l.device_memory), known(l.device_fraction) ? `${digits(100 * l.device_fraction, 1)}%` : '');
    add('memory', bytes(l.resident), 'peak ' + bytes(l.peak) + (known(l.memory_fraction) ? `, ${digits(100 * l.memory_fraction, 1)}%` : ''));
    if (known(l.goodput)) add('goodput', digits(100 * l.goodput, 1) + '%', 'of the time since the first start');
    if (told.pid && l.step < l.total_steps) add('left', duration(l.eta), '');
    if (known(told.rank_count)) add('ranks', count(told.rank_count), known(told.threads) ? count(told.threads) + (told.threads === 1 ? ' thread each' : ' threads each') : '');
    if (known(told.parameters)) add('parameters', short(told.parameters), '');
    if (l.skipped) add('skipped steps', count(l.skipped), 'not finite');
    return list;
  }

  function drawCards() {
    $('cards').replaceChildren(...shown().map((run) => {
      const [state, kind] = stateOf(run.told), l = run.told.last;
      const bar = element('progress', { max: Math.max(1, l.total_steps), value: l.step, 'aria-label': 'steps done' });
      return element('article', { class: 'card ' + run.style },
        element('h2', {}, run.told.name, element('span', { class: 'state ' + kind }, state)), bar,
        element('dl', {}, ...facts(run.told).map(([name, value, note]) =>
          element('div', {}, element('dt', {}, name), element('dd', {}, value, element('small', {}, note))))));
    }));
  }

  /* ---- curves ---- */

  const GIB = 2 ** 30, share = (p, key) => p[key].map((v, i) => (known(v) && p.seconds[i] > 0 ? (100 * v) / p.seconds[i] : null));
  const CHARTS = [
    { id: 'loss', title: 'Loss', unit: 'nats per token; dots: validation', wide: true, smooth: true, of: (p) => p.loss, log: true },
    { id: 'norm', title: 'Gradient norm', unit: 'before clipping', smooth: true, of: (p) => p.norm },
    { id: 'rate', title: 'Throughput', unit: 'tokens per second', smooth: true, zero: true, of: (p) => p.rate },
    { id: 'lr', title: 'Learning rate', unit: '', zero: true, of: (p) => p.lr },
    { id: 'wait', title: 'Waiting', unit: '% of a step of rank 0 for other ranks; dashed: for data', smooth: true, zero: true,
      of: (p) => share(p, 'wait'), also: (p) => share(p, 'data') },
    { id: 'seconds', title: 'Time', unit: 'milliseconds a step', smooth: true, zero: true, of: (p) => p.seconds.map((v) => (known(v) ? 1000 * v : null)) },
    { id: 'memory', title: 'Memory', unit: 'GiB, rank 0', zero: true, of: (p) => p.resident.map((v) => v / GIB) },
    { id: 'z_loss', title: 'z-loss', unit: 'not in the loss', smooth: true, optional: true, of: (p) => p.z_loss },
    { id: 'balance_loss', title: 'Balance loss', unit: 'of experts, not in the loss', smooth: true, optional: true, of: (p) => p.balance_loss },
    { id: 'imbalance', title: 'Experts', unit: 'tokens of one, largest / mean, worst layer', smooth: true, optional: true, of: (p) => p.imbalance },
    { id: 'noise', title: 'Gradient noise scale', unit: 'targets', smooth: true, optional: true, of: (p) => p.noise },
  ];

  /* Each named validation set and each task gets a chart when it is first reported, with all runs in it, as in the other charts. */
  const named = (run, chart) => run.told.named.find((n) => n.kind === chart.kind && n.name === chart.title);
  const scaled = (n) => (n.share ? n.dots.map(([s, v]) => [s, known(v) ? 100 * v : v]) : n.dots);

  function meetNamed(run) {
    for (const n of run.told.named) {
      if (!n.figure || CHARTS.some((chart) => chart.kind === n.kind && chart.title === n.name)) continue;
      const unit = n.kind === 'set' ? 'validation set, nats per token' : 'task, ' + (n.share ? '% right, ' : '') + n.figure;
      const chart = { id: 'named-' + CHARTS.length, kind: n.kind, title: n.name, unit, log: n.kind === 'set', optional: true };
      CHARTS.push(chart);
      makeChart(chart);
    }
  }

  /* The mean of forward and backward moving averages, as in the report: no lag. Gaps stay. */
  function smoothed(y) {
    const span = y.length / 50, keep = 1 - 2 / (Math.max(span, 1) + 1), out = y.map((v) => (known(v) ? 0 : null));
    if (span <= 1.5) return null;
    for (const back of [false, true]) {
      let sum = 0, weight = 0;
      for (let n = 0; n < y.length; n++) {
        const i = back ? y.length - 1 - n : n;
        if (!known(y[i])) continue;
        sum = keep * sum + (1 - keep) * y[i];
        weight = keep * weight + (1 - keep);
        out[i] += (0.5 * sum) / weight;
      }
    }
    return out;
  }

  function ticks(low, high, wanted) {
    const raw = (high - low) / wanted, power = 10 ** Math.floor(Math.log10(raw)), part = raw / power, out = [];
    const step = power * (part <= 1.4 ? 1 : part <= 3 ? 2 : part <= 7 ? 5 : 10);
    if (!(step > 0)) return out;
    for (let i = Math.ceil(low / step - 1e-9); i * step <= high + 1e-9 * step && out.length < 50; i++) out.push(i * step + 0); // + 0: never -0
    return out;
  }

  /* What a chart draws for a run: x, y, the smoothed line and dots, all after `from`. */
  function seriesOf(chart, run, from) {
    if (chart.kind) {
      const n = named(run, chart), dots = n ? scaled(n).filter(([s]) => s >= from) : [];
      return { run, x: dots.map(([s]) => s), y: dots.map(([, v]) => v), dots, line: null };
    }
    const p = run.points, first = p.step.findIndex((s) => s >= from), at = first < 0 ? p.step.length : first;
    const y = chart.of(p).slice(at), dots = chart.id === 'loss' ? run.told.validations.filter(([s]) => s >= from) : [];
    const also = chart.also && chart.also(p).slice(at), smooth = chart.smooth && $('smooth').checked;
    return { run, x: p.step.slice(at), y, also: also && ((smooth && smoothed(also)) || also), dots, line: smooth ? smoothed(y) : null };
  }

  function rangeOf(chart, series, log) {
    let low = Infinity, high = -Infinity;
    const take = (v) => { if (known(v) && !(log && v <= 0)) { low = Math.min(low, v); high = Math.max(high, v); } };
    for (const s of series) { s.y.forEach(take); (s.also || []).forEach(take); s.dots.forEach(([, v]) => take(v)); }
    if (low > high) return null;
    if (log) return [low / 1.05, high * 1.05];
    if (chart.zero) low = Math.min(0, low);
    const air = 0.06 * (high - low) || Math.abs(high) * 0.05 || 1;
    return [chart.zero && low >= 0 ? 0 : low - air, high + air];
  }

  function path(x, y, sx, sy, log) {
    let d = '', down = false;
    for (let i = 0; i < x.length; i++) {
      if (!known(y[i]) || (log && y[i] <= 0)) { down = false; continue; }
      d += (down ? 'L' : 'M') + sx(x[i]).toFixed(1) + ' ' + sy(y[i]).toFixed(1);
      down = true;
    }
    return d;
  }

  function logTicks(low, high) {
    const out = [];
    if (Math.log10(high / low) < 1) return ticks(low, high, 6);
    for (let e = Math.floor(Math.log10(low)); e <= Math.log10(high); e++)
      for (const m of [1, 2, 5]) if (m * 10 ** e >= low && m * 10 ** e <= high) out.push(m * 10 ** e);
    return out;
  }

  function drawChart(chart, from, to) {
    const figure = $('chart-' + chart.id), svg = figure.querySelector('svg'), log = Boolean(chart.log && $('log').checked);
    const series = shown().map((run) => seriesOf(chart, run, from)), range = rangeOf(chart, series, log);
    figure.hidden = Boolean(chart.optional && !range);
    const width = Math.max(200, svg.clientWidth), height = chart.wide ? HEIGHT.wide : HEIGHT.small;
    svg.setAttribute('viewBox', `0 0 ${width} ${height}`);
    svg.setAttribute('height', height);
    if (!range) {
      svg.replaceChildren(element('text', { x: width / 2, y: height / 2, 'text-anchor': 'middle' }, 'Nothing to draw yet.'));
      chart.drawn = null;
      return;
    }
    const x0 = from, x1 = Math.max(from + 1, to);
    const f = log ? Math.log10 : (v) => v, sx = (v) => BOX.left + ((v - x0) / (x1 - x0)) * (width - BOX.left - BOX.right);
    const sy = (v) => height - BOX.bottom - ((f(v) - f(range[0])) / (f(range[1]) - f(range[0]))) * (height - BOX.top - BOX.bottom);
    const parts = [];
    for (const t of log ? logTicks(...range) : ticks(...range, height / 45)) {
      parts.push(element('path', { class: 'grid', d: `M${BOX.left} ${sy(t).toFixed(1)}H${width - BOX.right}` }));
      parts.push(element('text', { x: BOX.left - 7, y: sy(t) + 4, 'text-anchor': 'end' }, short(t)));
    }
    parts.push(element('path', { class: 'axis', d: `M${BOX.left} ${height - BOX.bottom}H${width - BOX.right}` }));
    for (const t of ticks(x0, x1, width / 110)) if (Number.isInteger(t))
      parts.push(element('text', { x: sx(t), y: height - 7, 'text-anchor': sx(t) > width - 40 ? 'end' : 'middle' }, t.toLocaleString('en')));
    for (const s of series) {
      if (s.also) parts.push(element('path', { class: 'dash ' + s.run.style, d: path(s.x, s.also, sx, sy, log) }));
      parts.push(element('path', { class: (s.line ? 'raw ' : 'line ') + s.run.style, d: path(s.x, s.y, sx, sy, log) }));
      if (s.line) parts.push(element('path', { class: 'line ' + s.run.style, d: path(s.x, s.line, sx, sy, log) }));
      for (const [x, y] of s.dots) if (known(y) && !(log && y <= 0))
        parts.push(element('circle', { class: s.run.style, cx: sx(x).toFixed(1), cy: sy(y).toFixed(1), r: 3 }));
    }
    const hair = element('path', { class: 'hair' });
    svg.replaceChildren(...parts, hair);
    chart.drawn = { series, x0, x1, width, height, sx, hair };
  }

  function nearest(x, at) {
    let low = 0, high = x.length - 1;
    while (high - low > 1) { const m = (low + high) >> 1; if (x[m] < at) low = m; else high = m; }
    return at - x[low] < x[high] - at ? low : high;
  }

  /* The step under the pointer; every chart shows its value there. */
  let pointed = null;
  function readOut() {
    for (const chart of CHARTS) {
      const output = $('chart-' + chart.id).querySelector('output'), d = chart.drawn, many = shown().length > 1;
      if (!d || pointed === null) {
        output.textContent = '';
        if (d) d.hair.removeAttribute('d');
        continue;
      }
      const words = [];
      for (const s of d.series) {
        if (!s.x.length) continue;
        const i = nearest(s.x, pointed);
        if (!words.length) words.push('step ' + count(s.x[i]));
        words.push((many ? s.run.told.name + ' ' : '') + short(s.y[i]));
      }
      output.textContent = words.join('  ·  ');
      d.hair.setAttribute('d', `M${d.sx(pointed).toFixed(1)} ${BOX.top}V${d.height - BOX.bottom}`);
    }
  }

  /* All charts share one range of steps, so that the same position is the same step everywhere. An evaluation may come after the last step. */
  function drawCharts() {
    const last = Math.max(0, ...shown().map((r) => r.told.last.step)), lists = shown().flatMap((r) => [r.told.validations, ...r.told.named.map((n) => n.dots)]);
    const to = Math.max(last, ...lists.filter((dots) => dots.length).map((dots) => dots[dots.length - 1][0]));
    for (const chart of CHARTS) drawChart(chart, Math.floor(last * Number($('from').value)), to);
    readOut();
  }

  /* ---- ranks, journal, configuration ---- */

  function drawRanks() {
    const rows = shown().flatMap((run) => run.told.ranks.map((r) => ({ run, r })));
    const part = (v, r) => (known(v) && r.seconds > 0 ? Math.min(1, v / r.seconds) : 0);
    $('ranks').replaceChildren(...(rows.length ? [element('h2', {}, 'Ranks'),
      table([['rank'], ['step', 'n'], ['a step', 'n'], ['waits for others'], ['for data', 'n'], ['memory', 'n'], ['sent a step', 'n']],
        rows.map(({ run, r }) => {
          const bar = element('span', { class: 'bar ' + run.style });
          bar.style.width = Math.round(80 * part(r.wait, r)) + 'px';
          return [[[dot(run), String(r.rank)], 't'], [count(r.step), 'n'], [duration(r.seconds), 'n'], [[bar, digits(100 * part(r.wait, r), 1) + '%']],
            [digits(100 * part(r.data, r), 1) + '%', 'n'], [bytes(r.resident), 'n'], [bytes(r.sent), 'n']];
        }))] : []));
  }

  const KINDS = { nonfinite: 'bad', diverged: 'bad', failed: 'bad', spike: 'warn', stopped: 'warn', command: 'warn', finished: 'good' };
  function drawJournal() {
    const all = shown().flatMap((run) => run.told.journal.map((e) => ({ run, e })));
    all.sort((a, b) => (a.e.time < b.e.time ? 1 : a.e.time > b.e.time ? -1 : 0));
    $('journal').replaceChildren(...(all.length ? [element('h2', {}, 'Journal'),
      table([['time (UTC)'], ['step', 'n'], ['event'], ['detail']], all.slice(0, 200).map(({ run, e }) =>
        [[[dot(run), e.time.slice(5, 19).replace('T', ' ')], 't'], [count(e.step), 'n'], [e.event, KINDS[e.event] || ''], [e.detail, 'd']]))] : []));
  }

  function makeConfiguration() {
    $('configuration').replaceChildren(...runs.map((run) => {
      const text = element('pre', {}), details = element('details', {}, element('summary', {}, 'Configuration of ' + run.name),
        element('div', { class: 'scroll', tabindex: 0 }, text));
      details.addEventListener('toggle', async () => {
        if (!details.open) return;
        try { text.textContent = await (await ask('config', { run: run.index })).text(); } catch (why) { text.textContent = String(why); }
      });
      return details;
    }));
  }

  /* ---- main loop ---- */

  function draw() {
    drawCards();
    drawCharts();
    drawRanks();
    drawJournal();
    document.title = shown().map((r) => r.told.name).join(' · ') + ' · weft';
  }

  function lost(why) {
    $('lost').hidden = !why;
    $('lost').textContent = why ? 'weft watch does not answer (' + why + '); asking again' : '';
  }

  let asking = false;
  async function look() {
    if (asking || document.hidden) return;
    asking = true;
    try {
      for (const run of runs) if (run.shown) await update(run);
      lost(null);
      draw();
    } catch (why) { lost(why.message); }
    asking = false;
  }

  function makeChart(chart) {
    const svg = element('svg', { role: 'img', 'aria-label': chart.title + ' by step' });
    svg.addEventListener('pointermove', (e) => {
      const d = chart.drawn, box = svg.getBoundingClientRect();
      if (!d) return;
      const x = ((e.clientX - box.left) / box.width) * d.width;
      pointed = Math.min(d.x1, Math.max(d.x0, d.x0 + ((x - BOX.left) / (d.width - BOX.left - BOX.right)) * (d.x1 - d.x0)));
      readOut();
    });
    svg.addEventListener('pointerleave', () => { pointed = null; readOut(); });
    $('charts').append(element('figure', { id: 'chart-' + chart.id, class: chart.wide ? 'wide' : '' },
      element('figcaption', {}, element('b', {}, chart.title), element('span', {}, chart.unit), element('output', {})), svg));
  }

  function makeRuns(names) {
    names.forEach((name, index) => {
      const run = { index, name, style: 's' + (index + 1), shown: true };
      runs.push(run);
      if (names.length < 2) return;
      const button = element('button', { type: 'button', 'aria-pressed': 'true' }, dot(run), name);
      button.addEventListener('click', () => {
        run.shown = !run.shown;
        button.setAttribute('aria-pressed', String(run.shown));
        draw();
        look();
      });
      $('runs').append(button);
    });
  }

  async function start() {
    try {
      makeRuns((await (await ask('runs', {})).json()).runs);
    } catch (why) {
      lost(why.message);
      setTimeout(start, PERIOD);
      return;
    }
    CHARTS.forEach(makeChart);
    makeConfiguration();
    for (const id of ['log', 'smooth', 'from']) $(id).addEventListener('change', drawCharts);
    addEventListener('resize', drawCharts);
    document.addEventListener('visibilitychange', look);
    await look();
    setInterval(look, PERIOD);
  }
  start();
})();
