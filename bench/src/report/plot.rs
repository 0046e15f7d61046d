//! The plots, as inline SVG: latency over percentiles on a scale of nines, and bars.
//!
//! Inline in HTML, SVG needs no namespace, so a page with plots names no address at all.

use std::fmt::Write as _;

/// Colours of the lines and bars, in order (readable with the usual colour-blindness: Okabe and Ito).
pub(crate) const COLOURS: [&str; 6] = [
    "#6b7280", "#d55e00", "#0072b2", "#009e73", "#cc79a7", "#b8860b",
];

/// One line: its name, colour and points (percentile and latency in microseconds, or place and value).
pub(crate) struct Line {
    pub(crate) name: String,
    pub(crate) colour: &'static str,
    pub(crate) points: Vec<(f64, f64)>,
}

/// One bar.
pub(crate) struct Bar {
    pub(crate) name: String,
    pub(crate) colour: &'static str,
    /// The value, or why there is none.
    pub(crate) value: Result<f64, String>,
}

const WIDTH: f64 = 620.0;
const HEIGHT: f64 = 320.0;
const LEFT: f64 = 76.0;
const RIGHT: f64 = 14.0;
const TOP: f64 = 12.0;
const BOTTOM: f64 = 46.0;

/// Places on the axis of nines that get a label.
const NINES: [f64; 7] = [0.0, 50.0, 90.0, 99.0, 99.9, 99.99, 99.999];

/// Latency over percentile. x: −log₁₀(1 − p), so that each nine is as wide as the one before;
/// y: logarithmic if the values span more than a factor of eight.
pub(super) fn latency(lines: &[Line]) -> String {
    let all = || lines.iter().flat_map(|l| &l.points);
    let low = all().map(|p| p.1).fold(f64::INFINITY, f64::min);
    let high = all().map(|p| p.1).fold(0.0, f64::max);
    if !low.is_finite() || high <= 0.0 {
        return String::new();
    }
    let nines = all()
        .map(|p| p.0)
        .filter(|p| *p < 100.0)
        .map(nine)
        .fold(1.0, f64::max);
    let x = |percentile: f64| LEFT + nine(percentile).min(nines) / nines * (WIDTH - LEFT - RIGHT);
    let axis = Axis::new(low.max(0.01), high);
    let y = |us: f64| axis.y(us);

    let mut svg = open("latency over percentile");
    svg += &axis.grid();
    for percentile in NINES.into_iter().filter(|p| nine(*p) <= nines + 0.01) {
        svg += &mark(
            x(percentile),
            &if percentile == 0.0 {
                "min".into()
            } else {
                format!("{percentile}")
            },
        );
    }
    svg += &titles("percentile", &axis.title("latency, us"));
    for line in lines {
        svg += &polyline(line, &x, &y);
        for &(p, us) in line.points.iter().filter(|p| is_nine(p.0)) {
            let _ = write!(
                svg,
                "<circle cx={:.1} cy={:.1} r=3 fill=\"{}\"><title>{}: p{p} = {us:.1} us</title></circle>",
                x(p),
                y(us),
                line.colour,
                escape(&line.name)
            );
        }
    }
    svg + "</svg>"
}

/// Lines over some places that lie at equal distances, with their labels: points are (number of the place, value).
pub(crate) fn steps(lines: &[Line], places: &[String], x_title: &str, y_title: &str) -> String {
    let values = || {
        lines
            .iter()
            .flat_map(|line| &line.points)
            .map(|point| point.1)
    };
    let (low, high) = (
        values().fold(f64::INFINITY, f64::min),
        values().fold(0.0, f64::max),
    );
    if !low.is_finite() || high <= 0.0 {
        return String::new();
    }
    let axis = Axis::new(low.max(0.0), high);
    let width = (WIDTH - LEFT - RIGHT) / places.len().max(1) as f64;
    let (x, y) = (
        |place: f64| LEFT + (place + 0.5) * width,
        |value: f64| axis.y(value),
    );
    let mut svg = open(y_title) + &axis.grid();
    for (at, label) in places.iter().enumerate() {
        svg += &mark(x(at as f64), &escape(label));
    }
    svg += &titles(x_title, &axis.title(y_title));
    for line in lines {
        svg += &polyline(line, &x, &y);
        for &(place, value) in &line.points {
            let _ = write!(
                svg,
                "<circle cx={:.1} cy={:.1} r=3 fill=\"{}\"><title>{}: {}</title></circle>",
                x(place),
                y(value),
                line.colour,
                escape(&line.name),
                significant(value)
            );
        }
    }
    svg + "</svg>"
}

/// A vertical line of the grid with its label below.
fn mark(at: f64, label: &str) -> String {
    format!(
        "<line class=grid x1={at:.1} x2={at:.1} y1={TOP} y2={:.1} />\
         <text x={at:.1} y={:.1} text-anchor=middle>{label}</text>",
        HEIGHT - BOTTOM,
        HEIGHT - BOTTOM + 17.0,
    )
}

/// What the axes show.
fn titles(x: &str, y: &str) -> String {
    format!(
        "<text class=title x={:.1} y={:.1} text-anchor=middle>{x}</text>\
         <text class=title transform=\"translate(14 {:.1}) rotate(-90)\" text-anchor=middle>{y}</text>",
        (LEFT + WIDTH - RIGHT) / 2.0,
        HEIGHT - 8.0,
        (TOP + HEIGHT - BOTTOM) / 2.0,
    )
}

fn polyline(line: &Line, x: &impl Fn(f64) -> f64, y: &impl Fn(f64) -> f64) -> String {
    let points: Vec<String> = line
        .points
        .iter()
        .map(|&(at, value)| format!("{:.1},{:.1}", x(at), y(value)))
        .collect();
    format!(
        "<polyline points=\"{}\" stroke=\"{}\" />",
        points.join(" "),
        line.colour
    )
}

/// Horizontal bars with their values.
pub(crate) fn bars(bars: &[Bar], unit: &str) -> String {
    const ROW: f64 = 34.0;
    const NAME: f64 = 120.0;
    const VALUE: f64 = 130.0;
    let most = bars
        .iter()
        .filter_map(|b| b.value.as_ref().ok())
        .fold(0.0, |a: f64, b| a.max(*b));
    let height = ROW * bars.len() as f64 + 8.0;
    let mut svg = format!("<svg viewBox=\"0 0 {WIDTH} {height}\" role=img aria-label=\"{unit}\">");
    for (i, bar) in bars.iter().enumerate() {
        let top = ROW * i as f64 + 4.0;
        let middle = top + ROW / 2.0 + 1.0;
        let (length, label) = match &bar.value {
            Ok(value) if most > 0.0 => (
                value / most * (WIDTH - NAME - VALUE),
                format!("{} {unit}", significant(*value)),
            ),
            Ok(value) => (0.0, format!("{} {unit}", significant(*value))),
            Err(why) => (0.0, why.clone()),
        };
        let _ = write!(
            svg,
            "<text x={:.1} y={middle:.1} text-anchor=end>{}</text>\
             <rect x={NAME} y={:.1} width={length:.1} height={:.1} fill=\"{}\" rx=2 />\
             <text class=value x={:.1} y={middle:.1}>{}</text>",
            NAME - 10.0,
            escape(&bar.name),
            top + 5.0,
            ROW - 12.0,
            bar.colour,
            NAME + length + 8.0,
            escape(&label)
        );
    }
    svg + "</svg>"
}

fn open(label: &str) -> String {
    format!("<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=img aria-label=\"{label}\">")
}

/// Place of a percentile on the scale of nines: 90 is 1, 99 is 2.
fn nine(percentile: f64) -> f64 {
    -(1.0 - percentile.min(99.999_999) / 100.0).log10()
}

fn is_nine(percentile: f64) -> bool {
    [50.0, 90.0, 99.0, 99.9, 99.99, 99.999]
        .iter()
        .any(|n| (percentile - n).abs() < 1e-6)
}

/// The y axis.
struct Axis {
    low: f64,
    high: f64,
    log: bool,
    ticks: Vec<f64>,
}

impl Axis {
    fn new(low: f64, high: f64) -> Self {
        if low > 0.0 && high / low > 8.0 {
            let steps = [1.0, 2.0, 5.0];
            let mut marks: Vec<f64> = (-2..9)
                .flat_map(|e| steps.map(|s| s * 10f64.powi(e)))
                .collect();
            let from = marks.iter().rposition(|m| *m <= low).unwrap_or(0);
            let to = marks
                .iter()
                .position(|m| *m >= high)
                .unwrap_or(marks.len() - 1);
            marks = marks[from..=to].to_vec();
            let (low, high) = (marks[0], marks[marks.len() - 1]);
            if marks.len() > 9 {
                marks.retain(|m| (m.log10() - m.log10().round()).abs() < 1e-9);
            }
            return Self {
                low,
                high,
                log: true,
                ticks: marks,
            };
        }
        // Five steps of a round size, from zero unless all values lie far from it.
        let low = if high / low < 1.5 {
            low - (high - low) * 0.3
        } else {
            0.0
        };
        let raw = ((high - low) / 5.0).max(1e-3);
        let power = 10f64.powf(raw.log10().floor());
        let step = [1.0, 2.0, 2.5, 5.0, 10.0]
            .map(|s| s * power)
            .into_iter()
            .find(|s| *s >= raw)
            .unwrap_or(raw);
        let first = (low / step).floor();
        let last = (high / step).ceil().max(first + 1.0);
        let ticks: Vec<f64> = (0..=(last - first) as u32)
            .map(|i| (first + f64::from(i)) * step)
            .collect();
        Self {
            low: first * step,
            high: last * step,
            log: false,
            ticks,
        }
    }

    /// Where a value lies in the plot.
    fn y(&self, value: f64) -> f64 {
        HEIGHT - BOTTOM - self.place(value) * (HEIGHT - TOP - BOTTOM)
    }

    /// Its name, and how it counts.
    fn title(&self, name: &str) -> String {
        format!("{name}{}", if self.log { " (log)" } else { "" })
    }

    /// Horizontal lines with their labels.
    fn grid(&self) -> String {
        let mut svg = String::new();
        for tick in &self.ticks {
            let at = self.y(*tick);
            let _ = write!(
                svg,
                "<line class=grid x1={LEFT} x2={:.1} y1={at:.1} y2={at:.1} />\
                 <text x={:.1} y={:.1} text-anchor=end>{}</text>",
                WIDTH - RIGHT,
                LEFT - 7.0,
                at + 4.0,
                short(*tick)
            );
        }
        svg
    }

    /// 0 at the foot, 1 at the top.
    fn place(&self, value: f64) -> f64 {
        if self.log {
            let (low, high) = (self.low.log10(), self.high.log10());
            ((value.max(self.low).log10() - low) / (high - low)).clamp(0.0, 1.0)
        } else {
            ((value - self.low) / (self.high - self.low)).clamp(0.0, 1.0)
        }
    }
}

/// A tick's label: thousands get a thin gap.
fn short(value: f64) -> String {
    if value >= 1000.0 {
        let whole = format!("{value:.0}");
        let split = whole.len() - 3;
        return match split {
            0..=3 => format!("{}\u{202f}{}", &whole[..split], &whole[split..]),
            _ => format!("{} s", value / 1e6),
        };
    }
    let text = format!("{value:.2}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Three digits.
fn significant(value: f64) -> String {
    match value {
        v if v >= 100.0 => format!("{v:.0}"),
        v if v >= 10.0 => format!("{v:.1}"),
        v => format!("{v:.2}"),
    }
}

/// Text inside HTML.
pub(crate) fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_nine_is_as_wide() {
        assert!((nine(90.0) - 1.0).abs() < 1e-9);
        assert!((nine(99.0) - 2.0).abs() < 1e-9);
        assert!((nine(99.9) - 3.0).abs() < 1e-6);
        assert!(nine(100.0).is_finite());
    }

    #[test]
    fn axes_hold_their_values() {
        for (low, high) in [
            (9.4, 2730.0),
            (10.0, 12.0),
            (100_100.0, 100_900.0),
            (0.5, 3.0),
            (5.0, 5.0),
            (0.0, 100.0),
        ] {
            let axis = Axis::new(low, high);
            assert!(axis.low <= low && axis.high >= high, "{low} {high}");
            assert!(
                (2..=12).contains(&axis.ticks.len()),
                "{low} {high}: {:?}",
                axis.ticks
            );
            assert!(axis.place(low) <= axis.place(high));
        }
    }

    #[test]
    fn steps_have_a_line_for_each_relay() {
        let line = |name: &str, points: &[(f64, f64)]| Line {
            name: name.into(),
            colour: COLOURS[0],
            points: points.to_vec(),
        };
        let lines = [
            line("a", &[(0.0, 0.0), (1.0, 100.0)]),
            line("b<", &[(1.0, 50.0)]),
        ];
        let places = ["idle".into(), "100".into()];
        let svg = steps(&lines, &places, "messages/s", "CPU, %");
        assert_eq!(svg.matches("<polyline").count(), 2);
        assert_eq!(svg.matches("<circle").count(), 3);
        assert!(
            svg.contains("b&lt;: 50.0") && svg.contains(">idle<"),
            "{svg}"
        );
        assert_eq!(steps(&[], &places, "x", "y"), "");
    }
}
