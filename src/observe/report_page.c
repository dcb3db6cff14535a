/* The parts of the report that do not depend on the run: style and script.
 *
 * Both are text as it goes into the page, compact since every report contains them; no tool processes this
 * file for the browser. The style takes light or dark mode from the system. The script reads the JSON of
 * report_write_data (report_charts.c) and the axes' box of each drawing (chart.c), and writes to <output>
 * only by textContent, never as HTML.
 *
 * The parts of the page that the script uses:
 *
 *     #data                       JSON, an object per run: arrays step, loss, norm, lr, rate, resident, peak
 *                                 of the kept rows, those that the run recorded of zloss, balance,
 *                                 imbalance, noise, and vstep and vloss of the validations
 *     svg.plot, data-chart        a drawing, and the id of its chart: which arrays it reads out
 *     data-box, data-x            pixels of the plot's box, values of x at its edges
 *     .hair, output               where it draws the line and writes the words
 *     #loss .key                  names of the runs, if several
 *
 * It is plain JavaScript without busy loops, timers or requests: it does nothing that the security policy
 * (report.c) forbids. */
#include "observe/report.h"

/* The colours are Okabe and Ito's, distinguishable under the common kinds of colour blindness; marks also
 * differ by their words. */
const char *const report_style =
    ":root{--bg:#f6f7f9;--card:#fff;--ink:#1b2330;--soft:#5c6675;--line:#e3e7ec;--axis:#aab2bd;--s1:#0072b2;"
    "--s2:#d55e00;--s3:#009e73;--s4:#a0489b;--s5:#8a6d00;--s6:#5b6ee1;--s7:#7a4a21;--s8:#3f4750;"
    "--bad:#b3261e;--warn:#8a5a00;--good:#00734f;color-scheme:light dark}\n"
    "@media(prefers-color-scheme:dark){:root{--bg:#12161c;--card:#1a2029;--ink:#e6eaf0;--soft:#9aa5b4;"
    "--line:#2a323e;--axis:#566171;--s1:#56b4e9;--s2:#f0a04b;--s3:#2cc295;--s4:#d99bd0;--s5:#e5cf4a;"
    "--s6:#9fb0ff;--s7:#c79a6b;--s8:#c7cdd6;--bad:#ff8a80;--warn:#ffc65c;--good:#5fd6a5}}\n"
    "*{box-sizing:border-box}\n"
    "body{margin:0;background:var(--bg);color:var(--ink);"
    "font:15px/1.5 system-ui,-apple-system,'Segoe UI',Roboto,'Liberation Sans','DejaVu Sans',sans-serif}\n"
    "main{max-width:1120px;margin:0 auto;padding:28px 20px 48px}\n"
    "h1{font-size:26px;line-height:1.25;margin:0;overflow-wrap:anywhere}"
    "h2{font-size:18px;margin:32px 0 10px}\n"
    ".head{display:flex;flex-wrap:wrap;gap:4px 14px;align-items:center}.sub{color:var(--soft);"
    "margin:4px 0 18px}\n"
    ".state{font-size:13px;font-weight:600;padding:2px 10px;border-radius:99px;"
    "border:1px solid currentColor}\n"
    ".good{color:var(--good)}.bad{color:var(--bad)}.warn{color:var(--warn)}.plain{color:var(--soft)}\n"
    "dl{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(190px,45%),1fr));gap:10px;margin:0 0 "
    "18px}\n"
    "dl div{background:var(--card);border:1px solid var(--line);border-radius:8px;padding:10px 14px}\n"
    "dt{color:var(--soft);font-size:13px}dd{margin:0;font-size:20px;font-weight:600;"
    "font-variant-numeric:tabular-nums}\n"
    "dd small{display:block;font-size:12.5px;font-weight:400;color:var(--soft)}\n"
    ".charts{display:grid;grid-template-columns:1fr 1fr;gap:14px}\n"
    "figure{margin:0;background:var(--card);border:1px solid var(--line);border-radius:8px;"
    "padding:10px 12px 6px;display:flex;flex-wrap:wrap;align-items:center;gap:2px 8px;min-width:0}\n"
    "#loss{grid-column:1/-1}figcaption{margin-right:auto}.unit{color:var(--soft);margin-right:10px}\n"
    ".key,.note{color:var(--soft);font-size:13px;margin:0 10px 0 0;display:inline-block;max-width:100%;"
    "white-space:nowrap;overflow:hidden;text-overflow:ellipsis;vertical-align:bottom}"
    ".note i{display:inline-block;width:8px;height:8px;border-radius:50%;border:2px solid var(--soft);"
    "margin-right:5px}figcaption{min-width:0}.key i{display:inline-block;width:16px;"
    "height:3px;border-radius:2px;vertical-align:middle;margin-right:5px;background:var(--c)}\n"
    "output{font-size:13px;color:var(--soft);font-variant-numeric:tabular-nums;min-height:1.5em;order:1;"
    "flex:0 0 100%;text-align:right}\n"
    "input[type=radio]{position:absolute;opacity:0;pointer-events:none}\n"
    "label{font-size:12.5px;color:var(--soft);padding:0 8px;border:1px solid var(--line);border-radius:99px;"
    "cursor:pointer}\n"
    "input:checked+label{color:var(--card);background:var(--s1);border-color:var(--s1)}\n"
    "input:focus-visible+label{outline:2px solid var(--s2);outline-offset:2px}\n"
    ".plot{order:2;flex:0 0 100%;width:100%;height:auto;display:block}p.plot{color:var(--soft);"
    "padding:40px 0;text-align:center}\n"
    ".to-lin:checked~.log,.to-log:checked~.lin{display:none}\n"
    "svg text{font-size:12px;fill:var(--soft);font-variant-numeric:tabular-nums}\n"
    ".grid{stroke:var(--line);fill:none}.axis{stroke:var(--axis);fill:none}.hair{stroke:var(--soft);"
    "stroke-dasharray:3 3;fill:none}\n"
    ".s1{--c:var(--s1)}.s2{--c:var(--s2)}.s3{--c:var(--s3)}.s4{--c:var(--s4)}.s5{--c:var(--s5)}"
    ".s6{--c:var(--s6)}.s7{--c:var(--s7)}.s8{--c:var(--s8)}\n"
    ".name i{display:inline-block;width:14px;height:14px;border-radius:4px;vertical-align:-2px;"
    "margin-right:6px;background:var(--c)}p.name{margin:4px 0}\n"
    ".line,.raw{fill:none;stroke:var(--c);stroke-linejoin:round;stroke-linecap:round}.line{stroke-width:2}\n"
    ".raw{stroke-width:1;opacity:.38}.dot{fill:var(--card);stroke:var(--c);stroke-width:2}\n"
    ".mark path{stroke:var(--m);stroke-dasharray:1 3;fill:none}.mark .flag{fill:var(--m);stroke:none}\n"
    ".mark.skipped{--m:var(--bad)}.mark.spike{--m:var(--warn)}\n"
    ".steps{overflow-x:auto;margin-bottom:10px}.timeline{display:block;max-width:100%;height:auto}\n"
    ".scroll{overflow:auto;max-height:460px;background:var(--card);border:1px solid var(--line);"
    "border-radius:8px}\n"
    "table{border-collapse:collapse;width:100%;font-size:14px}td,th{text-align:left;padding:6px 14px;"
    "vertical-align:top;border-bottom:1px solid var(--line)}tr:last-child>*{border-bottom:0}\n"
    "th{color:var(--soft);font-weight:600}thead th{position:sticky;top:0;background:var(--card)}"
    "thead tr:last-child>*{border-bottom:1px solid var(--line)}\n"
    "td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}"
    "td.t{white-space:nowrap;color:var(--soft)}\n"
    "td.d{overflow-wrap:anywhere;width:70%;min-width:280px}td small{color:var(--soft)}\n"
    ".rows{max-height:none}.rows td,.rows th{overflow-wrap:anywhere;min-width:110px;max-width:380px}"
    ".rows .v{text-align:left;font-variant-numeric:tabular-nums}"
    ".rows tr>:first-child{position:sticky;left:0;background:var(--card);z-index:1;min-width:130px}"
    ".rows .long{max-height:9em;overflow:auto}\n"
    "summary{cursor:pointer;font-weight:600;font-size:18px;margin:28px 0 10px}pre{margin:0;padding:14px;"
    "font:13px/1.5 ui-monospace,'DejaVu Sans Mono',monospace;tab-size:4}\n"
    "footer{color:var(--soft);font-size:13px;margin-top:28px}\n"
    "@media(max-width:820px){.charts{grid-template-columns:1fr}#loss svg text{font-size:22px}"
    "#loss .line{stroke-width:4}.timeline{max-width:none;width:960px}td,th{padding:6px 10px}}"
    "@media print{.scroll{max-height:none}}\n";

/* The pointer over any chart selects the nearest kept step; all charts show it. With several runs each figure
 * is labelled by its run's name, with one by what it is. */
const char *const report_script =
    "'use strict';(()=>{\n"
    "const D=JSON.parse(document.getElementById('data').textContent),"
    "S=[...document.querySelectorAll('svg.plot')],many=D.length>1,"
    "N=[...document.querySelectorAll('#loss .key')].map(k=>k.textContent.trim());\n"
    "const C={loss:[['loss','training']],norm:[['norm','']],lr:[['lr','']],rate:[['rate','']],"
    "memory:many?[['peak','']]:[['resident','resident'],['peak','peak']],"
    "zloss:[['zloss','']],balance:[['balance','']],imbalance:[['imbalance','']],noise:[['noise','']]};\n"
    "const num=(v)=>v===null?'not finite':"
    "Math.abs(v)>=1e4?Math.round(v).toLocaleString('en'):String(+v.toPrecision(5));\n"
    "const near=(a,x)=>{let l=0,h=a.length-1;while(h-l>1){const m=l+h>>1;a[m]<x?l=m:h=m}"
    "return x-a[l]<a[h]-x?l:h};\n"
    "const tell=(d,r,chart,step,t)=>{const i=near(d.step,step),x=d.step[i];\n"
    "for(const[k,n]of C[chart]||[])if(d[k])t.push((many?N[r]+' ':n?n+' ':'')+num(d[k][i]));\n"
    "if(chart==='loss'&&!many&&d.vstep.length){const j=near(d.vstep,x);"
    "t.push('validation '+num(d.vloss[j])+(d.vstep[j]===x?'':' at '+d.vstep[j].toLocaleString('en')))}"
    "return x};\n"
    "const show=(step)=>{for(const s of S){const b=s.dataset.box.split(' ').map(Number),"
    "[p,q]=s.dataset.x.split(' ').map(Number),"
    "hair=s.querySelector('.hair'),o=s.closest('figure').querySelector('output');\n"
    "if(step===null){hair.removeAttribute('d');o.textContent='';continue}\n"
    "let x=null;const t=[];D.forEach((d,r)=>{if(!d.step.length)return;"
    "const y=tell(d,r,s.dataset.chart,step,t);if(x===null)x=y});\n"
    "t.unshift('step '+x.toLocaleString('en'));"
    "const px=b[0]+(x-p)/(q-p)*(b[2]-b[0]);hair.setAttribute('d','M'+px+' '+b[1]+'V'+b[3]);"
    "o.textContent=t.join('  \\u00b7  ')}};\n"
    "if(D.some(d=>d.step.length))for(const s of S){s.addEventListener('pointermove',e=>{const "
    "r=s.getBoundingClientRect(),"
    "b=s.dataset.box.split(' ').map(Number),[p,q]=s.dataset.x.split(' ').map(Number);"
    "const x=(e.clientX-r.left)/r.width*s.viewBox.baseVal.width;show(p+(x-b[0])/(b[2]-b[0])*(q-p))});\n"
    "s.addEventListener('pointerleave',()=>show(null))}})();\n";
