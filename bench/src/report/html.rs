//! The report as one HTML page: style and plots inline, no script, no address of anything outside.

use std::fmt::Write as _;

use super::plot::{self, Bar, COLOURS, Line, escape};
use super::{Outcome, Report, Row, Section, Variant, rows, short_rows};
use crate::machine::Machine;
use crate::rounds::Summary;
use crate::traffic::{Figures, Load};

/// Style of every page.
pub(crate) const STYLE: &str = include_str!("report.css");

/// The whole page.
pub(super) fn page(report: &Report) -> String {
    let mut page = format!(
        "<!DOCTYPE html>\n<html lang=en>\n<meta charset=utf-8>\n\
         <meta name=viewport content=\"width=device-width, initial-scale=1\">\n\
         <title>l2relay-bench chain</title>\n<style>\n{STYLE}</style>\n<main>\n\
         <h1>Client — relay — server</h1>\n<p class=sub>{} · {} · {}took {:.0} s</p>\n",
        escape(&report.machine.date),
        escape(&report.machine.cpu_model),
        match report.rounds {
            1 => String::new(),
            rounds => format!("median (smallest–largest) of {rounds} rounds · "),
        },
        report.took_s
    );
    for section in &report.sections {
        page += &section_html(section);
    }
    if !report.goals.is_empty() {
        page += "<h2>Goals</h2>\n<table>\n<tr><th>goal<th>measured<th>met</tr>\n";
        for goal in &report.goals {
            let (measured, met) = goal.words();
            let goal = escape(&goal.goal);
            let _ = writeln!(page, "<tr><td>{goal}<td>{measured}<td>{met}</tr>");
        }
        page += "</table>\n";
    }
    page += "<h2>How to read this</h2>\n<ul>\n";
    for note in &report.notes {
        let _ = writeln!(page, "<li>{}</li>", escape(note));
    }
    page += "</ul>\n<h2>Machine</h2>\n<table class=facts>\n";
    for (name, value) in facts(&report.machine) {
        let (name, value) = (escape(&name), escape(&value));
        let _ = writeln!(page, "<tr><th>{name}</th><td>{value}</td></tr>");
    }
    page + "</table>\n</main>\n</html>\n"
}

/// The machine's facts as name and value.
pub(crate) fn facts(m: &Machine) -> Vec<(String, String)> {
    let virtual_machine = if m.virtual_machine {
        ", virtual machine"
    } else {
        ""
    };
    let mut facts: Vec<(String, String)> = [
        ("date", m.date.clone()),
        (
            "CPU",
            format!("{} ({} to use{virtual_machine})", m.cpu_model, m.cpus),
        ),
        ("memory", format!("{} MiB", m.memory_mib)),
        ("kernel", m.kernel.clone()),
        ("system", m.system.clone()),
        (
            "load before the start",
            format!("{:.2} (average of one minute)", m.load_before),
        ),
        ("command", m.command.clone()),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into();
    facts.extend(m.versions.iter().cloned());
    facts
}

fn section_html(section: &Section) -> String {
    let mut html = format!("<h2>{}</h2>\n<ul class=legend>\n", escape(&section.title));
    for (variant, colour) in section.variants.iter().zip(COLOURS.iter().cycle()) {
        let _ = write!(
            html,
            "<li><i style=\"background:{colour}\"></i><b>{}</b> {}",
            escape(&variant.name),
            escape(&variant.about)
        );
        if !variant.command.is_empty() {
            let _ = write!(html, "<br><code>{}</code>", escape(&variant.command));
        }
        for said in variant.remarks() {
            let _ = write!(html, "; {}", escape(&said));
        }
        if let Some(failure) = variant.failure() {
            let _ = write!(html, "<br><span class=bad>{}</span>", escape(&failure));
        }
        html += "</li>\n";
    }
    html += "</ul>\n";
    html += &summary(section);
    let (latencies, rates): (Vec<Load>, Vec<Load>) =
        section.loads().into_iter().partition(Load::is_latency);
    for loads in [latencies, rates] {
        html += "<div class=plots>\n";
        for load in loads {
            html += &figure(section, load);
        }
        html += "</div>\n";
    }
    html += "<details open><summary>All figures</summary>\n<div class=tables>\n";
    for load in section.loads() {
        html += &table(section, load);
    }
    html + "</div>\n</details>\n"
}

/// The plot of a load.
fn figure(section: &Section, load: Load) -> String {
    let coloured = || section.variants.iter().zip(COLOURS.iter().copied().cycle());
    let svg = if load.is_latency() {
        let lines: Vec<Line> = coloured()
            .filter_map(|(variant, colour)| line(variant, load, colour))
            .collect();
        plot::latency(&lines)
    } else {
        let bars: Vec<Bar> = coloured()
            .filter_map(|(variant, colour)| bar(variant, load, colour))
            .collect();
        let unit = if matches!(load, Load::Iperf3 { .. }) {
            "Gbit/s"
        } else {
            "Mbit/s"
        };
        plot::bars(&bars, unit)
    };
    let mut keys = String::new();
    if load.is_latency() {
        for (variant, colour) in coloured().filter(|(v, _)| v.of(load).flatten().next().is_some()) {
            let silent = line(variant, load, colour).is_none();
            let _ = write!(
                keys,
                "<span><i style=\"background:{colour}\"></i>{}{}</span>",
                escape(&variant.name),
                if silent { ": no connection" } else { "" }
            );
        }
    }
    format!(
        "<figure><figcaption>{}<small>{}</small></figcaption>\n<div class=keys>{keys}</div>{svg}</figure>\n",
        escape(&load.to_string()),
        match load {
            Load::PingPong { .. } | Load::UnderLoad { .. } =>
                "half the round trip; lower is better",
            Load::Throughput { .. } => "payload at the server; higher is better",
            Load::Iperf3 { .. } => "goodput at the receiver; higher is better",
        }
    )
}

/// The distribution of the round whose average is in the middle.
fn line(variant: &Variant, load: Load, colour: &'static str) -> Option<Line> {
    let mut latencies: Vec<_> = variant
        .of(load)
        .flatten()
        .filter_map(|measurement| match &measurement.outcome {
            Outcome::Measured(Figures::Latency(latency)) => Some(latency),
            _ => None,
        })
        .collect();
    latencies.sort_by(|a, b| a.avg_us.total_cmp(&b.avg_us));
    let latency = latencies.get(latencies.len().saturating_sub(1) / 2)?;
    let mut points: Vec<(f64, f64)> = latency
        .curve
        .iter()
        .chain(&latency.percentiles)
        .map(|p| (p.percentile, p.us))
        // A percentile beyond the last observation only repeats the largest.
        .filter(|(p, _)| (1.0 - p / 100.0) * latency.observations as f64 >= 0.999)
        .chain([(0.0, latency.min_us)])
        .collect();
    points.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1)));
    Some(Line {
        name: variant.name.clone(),
        colour,
        points,
    })
}

fn bar(variant: &Variant, load: Load, colour: &'static str) -> Option<Bar> {
    let series = variant.series(load, |figures| match figures {
        Figures::Goodput(g) => Some(g.received_bps / 1e9),
        Figures::Throughput(t) => Some(t.received_mbps),
        Figures::Latency(_) => None,
    });
    let value = match Summary::of(&series) {
        Some(summary) => Ok(summary.median),
        None => match variant.of(load).flatten().next()?.outcome {
            Outcome::NoConnection(_) => Err("no connection".into()),
            _ => Err("failed".into()),
        },
    };
    Some(Bar {
        name: variant.name.clone(),
        colour,
        value,
    })
}

/// The figures that matter most.
fn summary(section: &Section) -> String {
    let mut html = format!(
        "<table class=summary>\n{}",
        heads(section, "<th></th><th></th>")
    );
    for load in section.loads() {
        let rows = short_rows(section, load);
        for (i, row) in rows.iter().enumerate() {
            html += "<tr>";
            if i == 0 {
                let load = escape(&load.to_string());
                let _ = write!(html, "<th rowspan={}>{load}</th>", rows.len());
            }
            html += &cells(row);
        }
    }
    html + "</table>\n"
}

/// All figures of a load.
fn table(section: &Section, load: Load) -> String {
    let mut html = format!("<table>\n<caption>{}", escape(&load.to_string()));
    if let Some(command) = section.command(load) {
        let _ = write!(html, "<br><code>{}</code>", escape(command));
    }
    html += "</caption>\n";
    html += &heads(section, "<th></th>");
    for row in rows(section, load) {
        html += "<tr>";
        html += &cells(&row);
    }
    html + "</table>\n"
}

fn heads(section: &Section, first: &str) -> String {
    let mut html = format!("<tr>{first}");
    for variant in &section.variants {
        let _ = write!(html, "<th>{}</th>", escape(&variant.name));
    }
    html + "</tr>\n"
}

fn cells(row: &Row) -> String {
    let mut html = format!("<th>{}</th>", escape(&row.name));
    for cell in &row.cells {
        let _ = write!(html, "<td>{}</td>", escape(cell));
    }
    html + "</tr>\n"
}
