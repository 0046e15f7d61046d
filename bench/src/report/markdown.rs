//! The report as Markdown, with columns aligned so that it reads on a terminal too.

use std::fmt::Write as _;

use super::{Report, Row, Section, rows, short_rows};

/// The short tables only.
pub(super) fn summary(report: &Report) -> String {
    let mut text = String::new();
    if report.rounds > 1 {
        let _ = writeln!(
            text,
            "Median (smallest–largest) of {} rounds.\n",
            report.rounds
        );
    }
    for section in &report.sections {
        let _ = writeln!(text, "## {}\n\n{}", section.title, summary_table(section));
    }
    text += &goals(report);
    text += &troubles(report);
    text
}

/// The short tables, then all figures, the machine and the notes.
pub(super) fn whole(report: &Report) -> String {
    let mut text = format!("# l2relay-bench chain, {}\n\n", report.machine.date);
    text += &summary(report);
    for section in &report.sections {
        let _ = writeln!(text, "## All figures: {}\n", section.title);
        for load in section.loads() {
            let _ = writeln!(text, "### {load}\n");
            if let Some(command) = section.command(load) {
                let _ = writeln!(text, "`{command}`\n");
            }
            text += &table(section, &rows(section, load));
            text.push('\n');
        }
    }
    text += "## Relays\n\n";
    for section in &report.sections {
        let _ = writeln!(text, "{}:\n", section.title);
        for v in &section.variants {
            let _ = write!(text, "- {}: {}", v.name, v.about);
            if !v.command.is_empty() {
                let _ = write!(text, "; `{}`", v.command);
            }
            for said in v.remarks() {
                let _ = write!(text, "; {said}");
            }
            text.push('\n');
        }
        text.push('\n');
    }
    text += "## Machine\n\n";
    for (name, value) in super::html::facts(&report.machine) {
        let _ = writeln!(text, "- {name}: {value}");
    }
    text += "\n## Notes\n\n";
    for note in &report.notes {
        let _ = writeln!(text, "- {note}");
    }
    text
}

fn summary_table(section: &Section) -> String {
    let mut short = Vec::new();
    for load in section.loads() {
        for (i, mut row) in short_rows(section, load).into_iter().enumerate() {
            let load = if i == 0 {
                load.to_string()
            } else {
                String::new()
            };
            row.name = format!("{load:<42} {}", row.name);
            short.push(row);
        }
    }
    table(section, &short)
}

fn goals(report: &Report) -> String {
    let mut text = String::new();
    if !report.goals.is_empty() {
        text += "| goal | measured | met |\n|---|---|---|\n";
    }
    for goal in &report.goals {
        let (measured, met) = goal.words();
        let _ = writeln!(text, "| {} | {measured} | {met} |", goal.goal);
    }
    if !text.is_empty() {
        text.push('\n');
    }
    text
}

fn troubles(report: &Report) -> String {
    let mut text = String::new();
    for section in &report.sections {
        for variant in &section.variants {
            if let Some(failure) = variant.failure() {
                let _ = writeln!(text, "{}, {}: {failure}", section.title, variant.name);
            }
        }
    }
    if !text.is_empty() {
        text.push('\n');
    }
    text
}

/// Variants as columns.
fn table(section: &Section, rows: &[Row]) -> String {
    let width = |text: &str| text.chars().count();
    let first = rows.iter().map(|r| width(&r.name)).max().unwrap_or(0);
    let widths: Vec<usize> = section
        .variants
        .iter()
        .enumerate()
        .map(|(i, v)| {
            let cells = rows.iter().map(|r| width(&r.cells[i]));
            cells.max().unwrap_or(0).max(width(&v.name)).max(8)
        })
        .collect();
    let mut text = format!("| {:<first$} |", "");
    for (variant, w) in section.variants.iter().zip(&widths) {
        let _ = write!(text, " {:>w$} |", variant.name);
    }
    let _ = write!(text, "\n|{}|", "-".repeat(first + 2));
    for w in &widths {
        let _ = write!(text, "{}:|", "-".repeat(w + 1));
    }
    text.push('\n');
    for row in rows {
        let _ = write!(text, "| {:<first$} |", row.name);
        for (cell, w) in row.cells.iter().zip(&widths) {
            let _ = write!(text, " {cell:>w$} |");
        }
        text.push('\n');
    }
    text
}
