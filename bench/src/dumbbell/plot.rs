//! The dumbbell's plot: a bar with whiskers for every case and every published figure, the formulae as marks. Inline SVG.

use std::fmt::Write as _;

use super::BAND_KBPS;
use super::expect::PUBLISHED;
use super::report::{Report, Row};
use crate::report::plot::{COLOURS, escape};

const ROW: f64 = 26.0;
/// Where bars begin, and where they may end.
const LEFT: f64 = 290.0;
const RIGHT: f64 = 850.0;
const WIDTH: f64 = 980.0;
const TOP: f64 = 26.0;

/// Whose figure it is, and its colour.
const KINDS: [(&str, &str); 3] = [
    ("this kernel over l2relay", COLOURS[2]),
    ("ns-3 on this machine", COLOURS[3]),
    ("published with DCE Cradle", COLOURS[0]),
];

struct Bar {
    name: String,
    mean: f64,
    sd: f64,
    /// Mathis and PFTK.
    marks: Option<[f64; 2]>,
    colour: &'static str,
}

fn bars(rows: &[Row]) -> Vec<Bar> {
    let own = rows.iter().filter_map(|row| {
        let found = row.received()?;
        Some(Bar {
            name: row.name.clone(),
            mean: found.mean,
            sd: found.sd.unwrap_or(0.0),
            marks: row.expected_kbps,
            colour: KINDS[usize::from(row.case.is_none())].1,
        })
    });
    let published = PUBLISHED.iter().map(|(name, mean, sd)| Bar {
        name: (*name).to_owned(),
        mean: *mean,
        sd: *sd,
        marks: None,
        colour: KINDS[2].1,
    });
    own.chain(published).collect()
}

/// What the colours and marks mean, for above the plot.
pub(super) fn keys() -> String {
    let mut keys = String::from("<div class=keys>");
    for (name, colour) in KINDS {
        let _ = write!(
            keys,
            "<span><i style=\"background:{colour}\"></i>{name}</span>"
        );
    }
    let [low, high] = BAND_KBPS;
    let _ = write!(
        keys,
        "<span>├─┤ one standard deviation</span><span>◆ Mathis</span><span>● PFTK</span>\
         <span><i style=\"background:#f3e3b5\"></i>goal for Reno and CUBIC at 5 %: {low:.0} to {high:.0}</span></div>"
    );
    keys
}

/// The plot.
pub(super) fn svg(report: &Report) -> String {
    let bars = bars(&report.rows);
    // Cases that fill the line are cut off: the others are what is compared.
    let ends = bars
        .iter()
        .flat_map(|bar| [bar.mean + bar.sd, bar.marks.map_or(0.0, |marks| marks[0])]);
    let most = ends
        .filter(|value| *value < 1000.0)
        .fold(BAND_KBPS[1], f64::max);
    let most = (most / 100.0).ceil() * 100.0;
    let x = |value: f64| LEFT + value.clamp(0.0, most) / most * (RIGHT - LEFT);
    let bottom = TOP + ROW * bars.len() as f64;
    let height = bottom + 6.0;
    let mut svg = format!("<svg viewBox=\"0 0 {WIDTH} {height}\" role=img aria-label=goodput>");
    let [low, high] = BAND_KBPS.map(x);
    let _ = write!(
        svg,
        "<rect x={low:.1} y={TOP} width={:.1} height={:.1} fill=\"#f3e3b5\" />",
        high - low,
        bottom - TOP
    );
    for tick in 0..=(most / 100.0) as u32 {
        let at = x(f64::from(tick) * 100.0);
        let _ = write!(
            svg,
            "<line class=grid x1={at:.1} x2={at:.1} y1={TOP} y2={bottom} />\
             <text x={at:.1} y={:.1} text-anchor=middle>{}</text>",
            TOP - 8.0,
            tick * 100
        );
    }
    for (at, bar) in bars.iter().enumerate() {
        draw(&mut svg, bar, TOP + ROW * at as f64, most, &x);
    }
    svg + "</svg>\n"
}

fn draw(svg: &mut String, bar: &Bar, top: f64, most: f64, x: &impl Fn(f64) -> f64) {
    let (middle, end) = (top + ROW / 2.0, x(bar.mean));
    let (upper, lower) = (top + 5.0, top + ROW - 5.0);
    let _ = write!(
        svg,
        "<text x={:.1} y={:.1} text-anchor=end>{}</text>\
         <rect x={LEFT} y={upper:.1} width={:.1} height={:.1} fill=\"{}\" />",
        LEFT - 8.0,
        middle + 4.0,
        escape(&bar.name),
        end - LEFT,
        lower - upper,
        bar.colour
    );
    if bar.mean > most {
        // A gap near its end says that it goes on.
        for off in [26.0, 18.0] {
            let (left, right) = (end - off - 4.0, end - off + 4.0);
            let _ = write!(
                svg,
                "<line x1={left:.1} x2={right:.1} y1={:.1} y2={:.1} stroke=\"#fff\" stroke-width=3 />",
                lower + 2.0,
                upper - 2.0
            );
        }
    } else {
        let (from, to) = (x(bar.mean - bar.sd), x(bar.mean + bar.sd));
        let (a, b) = (middle - 5.0, middle + 5.0);
        let _ = write!(
            svg,
            "<path d=\"M{from:.1} {middle:.1}H{to:.1}M{from:.1} {a:.1}V{b:.1}M{to:.1} {a:.1}V{b:.1}\" \
             stroke=\"#111\" stroke-width=1.5 fill=none />"
        );
    }
    if let Some([mathis, pftk]) = bar.marks.map(|marks| marks.map(x)) {
        let outline = "fill=\"#111\" stroke=\"#fff\" stroke-width=1.5";
        let _ = write!(
            svg,
            "<path d=\"M{mathis:.1} {:.1}l6 6l-6 6l-6 -6z\" {outline} />\
             <circle cx={pftk:.1} cy={middle:.1} r=4.5 {outline} />",
            middle - 6.0
        );
    }
    let _ = write!(
        svg,
        "<text class=value x={:.1} y={:.1}>{:.0} ± {:.0}</text>",
        RIGHT + 14.0,
        middle + 4.0,
        bar.mean,
        bar.sd
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_that_go_on_say_so_and_names_are_escaped() {
        let x = |value: f64| LEFT + value.min(400.0);
        let mut bar = Bar {
            name: "a < b".into(),
            mean: 300.0,
            sd: 20.0,
            marks: Some([317.0, 255.0]),
            colour: COLOURS[0],
        };
        let drawn = |bar: &Bar| {
            let mut svg = String::new();
            draw(&mut svg, bar, 0.0, 400.0, &x);
            svg
        };
        let svg = drawn(&bar);
        assert!(svg.contains("a &lt; b") && svg.contains("300 ± 20"));
        assert!(
            svg.contains("<circle cx=545.0") && !svg.contains("stroke=\"#fff\" stroke-width=3")
        );
        bar.mean = 1834.0;
        let svg = drawn(&bar);
        assert!(svg.contains("1834 ± 20") && svg.contains("stroke=\"#fff\" stroke-width=3"));
    }
}
