//! The comparison as one HTML page, in the style of the chain's report: goals, bars, table.

use std::fmt::Write as _;

use super::Report;
use super::metric::RATES;
use crate::report::html::{STYLE, facts};
use crate::report::plot::{self, Bar, COLOURS, Line, escape};
use crate::rounds::Summary;
use crate::rounds::figure::Figure;

/// The whole page.
pub(super) fn page(report: &Report) -> String {
    let mut page = format!(
        "<!DOCTYPE html>\n<html lang=en>\n<meta charset=utf-8>\n\
         <meta name=viewport content=\"width=device-width, initial-scale=1\">\n\
         <title>l2relay-bench peers</title>\n<style>\n{STYLE}</style>\n<main>\n\
         <h1>Relays side by side</h1>\n\
         <p class=sub>{} · {} · medians of {} rounds, {} s each measurement</p>\n",
        escape(&report.machine.date),
        escape(&report.machine.cpu_model),
        report.rounds,
        report.seconds
    );
    page += &legend(report);
    page += &goals(report);
    page += &curves(report);
    page += "<h2>Figures</h2>\n<div class=plots>\n";
    for figure in report.results.figures() {
        page += &plotted(report, figure);
    }
    page += "</div>\n";
    page += &table(report);
    page += "<h2>How to read this</h2>\n<ul>\n";
    for note in super::NOTES {
        let _ = writeln!(page, "<li>{}</li>", escape(note));
    }
    for note in report.results.notes() {
        let _ = writeln!(page, "<li>{}</li>", escape(&note));
    }
    page += "</ul>\n<h2>Machine</h2>\n<table class=facts>\n";
    for (name, value) in facts(&report.machine) {
        let (name, value) = (escape(&name), escape(&value));
        let _ = writeln!(page, "<tr><th>{name}</th><td>{value}</td></tr>");
    }
    page + "</table>\n</main>\n</html>\n"
}

fn legend(report: &Report) -> String {
    let mut html = String::from("<ul class=legend>\n");
    for (at, entrant) in report.relays.iter().enumerate() {
        let _ = write!(
            html,
            "<li><i style=\"background:{}\"></i><b>{}</b> {}",
            colour(at),
            escape(entrant.name),
            escape(entrant.about)
        );
        if !entrant.command.is_empty() {
            let _ = write!(html, "<br><code>{}</code>", escape(&entrant.command));
        }
        if let Some(reason) = &entrant.skipped {
            let _ = write!(
                html,
                "<br><span class=bad>skipped: {}</span>",
                escape(reason)
            );
        }
        html += "</li>\n";
    }
    html + "</ul>\n"
}

fn goals(report: &Report) -> String {
    if report.goals.is_empty() {
        return String::new();
    }
    let mut html = String::from(
        "<h2>Goals</h2>\n<table>\n<tr><th>goal</th><th>measured</th><th>met</th></tr>\n",
    );
    for verdict in &report.goals {
        let (measured, met) = verdict.words();
        let class = if verdict.met == Some(false) {
            " class=bad"
        } else {
            ""
        };
        let _ = writeln!(
            html,
            "<tr><th>{}</th><td>{}</td><td{class}>{met}</td></tr>",
            escape(&verdict.goal),
            escape(&measured)
        );
    }
    html + "</table>\n"
}

/// A bar for each relay.
fn plotted(report: &Report, figure: &Figure) -> String {
    let results = &report.results;
    let bars: Vec<Bar> = report
        .relays
        .iter()
        .enumerate()
        .filter_map(|(at, entrant)| {
            let summary = results
                .values(entrant.name, &figure.key)
                .and_then(Summary::of);
            let value = match summary {
                Some(summary) => Ok(summary.median),
                None => Err(results.lack_word(entrant.name, &figure.key)?.into()),
            };
            Some(Bar {
                name: entrant.name.into(),
                colour: colour(at),
                value,
            })
        })
        .collect();
    let better = if figure.more_is_better {
        "higher is better"
    } else {
        "lower is better"
    };
    format!(
        "<figure><figcaption>{}<small>{better}</small></figcaption>\n{}</figure>\n",
        escape(&figure.label),
        plot::bars(&bars, figure.unit)
    )
}

/// Latency and CPU of the relays over the rate of messages, if it was measured at two rates at least.
fn curves(report: &Report) -> String {
    let places: Vec<String> = std::iter::once("idle".into())
        .chain(RATES.iter().map(u32::to_string))
        .collect();
    let under_load = |what: &str| RATES.map(|mps| format!("under-load-{mps}-{what}"));
    let latency: Vec<String> = std::iter::once(String::new())
        .chain(under_load("p50"))
        .collect();
    let cpu: Vec<String> = std::iter::once("idle-cpu".into())
        .chain(under_load("cpu"))
        .collect();
    let mut html = String::new();
    for (keys, caption, unit) in [
        (latency, "Half a round trip, p50", "us"),
        (cpu, "CPU of the relay", "%"),
    ] {
        let lines: Vec<Line> = report
            .relays
            .iter()
            .enumerate()
            .map(|(at, entrant)| Line {
                name: entrant.name.into(),
                colour: colour(at),
                points: points(report, entrant.name, &keys),
            })
            .filter(|line| line.points.len() > 1)
            .collect();
        let keys: String = lines
            .iter()
            .map(|line| {
                format!(
                    "<span><i style=\"background:{}\"></i>{}</span>",
                    line.colour,
                    escape(&line.name)
                )
            })
            .collect();
        let svg = plot::steps(&lines, &places, "messages/s", unit);
        if !svg.is_empty() {
            let _ = writeln!(
                html,
                "<figure><figcaption>{caption}<small>lower is better</small></figcaption>\n\
                 <div class=keys>{keys}</div>\n{svg}</figure>"
            );
        }
    }
    if html.is_empty() {
        return html;
    }
    format!("<h2>Over the rate of messages</h2>\n<div class=plots>\n{html}</div>\n")
}

/// A relay's medians, each at the place of its key.
fn points(report: &Report, relay: &str, keys: &[String]) -> Vec<(f64, f64)> {
    let median = |key: &String| {
        let summary = Summary::of(report.results.values(relay, key)?)?;
        Some(summary.median)
    };
    keys.iter()
        .enumerate()
        .filter_map(|(place, key)| Some((place as f64, median(key)?)))
        .collect()
}

/// Medians and ranges.
fn table(report: &Report) -> String {
    let (heads, rows) = report.results.table();
    let mut html =
        String::from("<table>\n<caption>Median (smallest–largest of the rounds)</caption>\n<tr>");
    for head in &heads {
        let _ = write!(html, "<th>{}</th>", escape(head));
    }
    html += "</tr>\n";
    for row in rows {
        html += "<tr>";
        for (at, cell) in row.iter().enumerate() {
            let tag = if at == 0 { "th" } else { "td" };
            let _ = write!(html, "<{tag}>{}</{tag}>", escape(cell));
        }
        html += "</tr>\n";
    }
    html + "</table>\n"
}

fn colour(at: usize) -> &'static str {
    COLOURS[at % COLOURS.len()]
}
