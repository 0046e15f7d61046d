//! How `top` looks: ports, lanes with their rates as plots, and what was lost. Sixteen colours and no mouse, for ssh; whatever is
//! coloured is told in text too.

use std::fmt;

use ratatui::{
    buffer::Buffer,
    layout::{Constraint, Layout, Rect},
    style::{Color, Modifier, Style},
    symbols::bar,
    text::{Line, Span},
    widgets::{RenderDirection, Row, Sparkline, SparklineBar, Table, Widget},
};

use super::{
    super::remote::uptime,
    model::{Top, lost},
};
use crate::snapshot::{LaneSnapshot, PortSnapshot, PortState, table::si};

const HEAD: Style = Style::new().add_modifier(Modifier::REVERSED);
const BAD: Style = Style::new().fg(Color::Red).add_modifier(Modifier::BOLD);
const DIM: Style = Style::new().add_modifier(Modifier::DIM);
const PLOT: Style = Style::new().fg(Color::Green);

/// Bars for terminals that know no other letters.
const ASCII_BARS: bar::Set = bar::Set {
    full: "#",
    seven_eighths: "#",
    three_quarters: "=",
    five_eighths: "=",
    half: "-",
    three_eighths: "-",
    one_quarter: ".",
    one_eighth: ".",
    empty: " ",
};

impl Widget for &Top {
    fn render(self, area: Rect, buffer: &mut Buffer) {
        let (ports, lanes, losses) = self.room();
        let line = |lines: usize| Constraint::Length(u16::try_from(lines).unwrap_or(u16::MAX));
        let parts = Layout::vertical([
            line(1),
            line(ports + 1),
            line(1),
            line(lanes + 1),
            line(1),
            line(losses),
            Constraint::Fill(1),
            line(1),
        ]);
        let [title, port_area, _, lane_area, workers, loss_area, _, keys] = parts.areas(area);
        self.title().render(title, buffer);
        self.render_ports(port_area, buffer);
        self.render_lanes(lane_area, buffer);
        self.workers().render(workers, buffer);
        self.render_losses(loss_area, buffer);
        self.keys(lanes).render(keys, buffer);
    }
}

impl Top {
    /// What is amiss comes first: the rest may be cut off.
    fn title(&self) -> Line<'_> {
        let mut spans = Vec::new();
        if self.paused {
            spans.push(Span::styled("PAUSED ", BAD));
        } else if self.trouble.is_some() {
            spans.push(Span::styled("WAITING ", BAD));
        }
        let bold = Style::new().add_modifier(Modifier::BOLD);
        spans.push(Span::styled(format!("l2relay {}", self.relay), bold));
        if let Some(why) = &self.trouble {
            spans.push(Span::styled(format!("  {why}"), BAD));
        } else if let Some(now) = &self.now {
            spans.push(Span::raw(format!(
                "  up {}  {} ports  {} lanes  every {} s",
                uptime(now.uptime_s),
                now.ports.len(),
                now.lanes.len(),
                self.every.as_secs_f64()
            )));
        }
        Line::from(spans)
    }

    fn workers(&self) -> Line<'_> {
        let workers = self
            .now
            .iter()
            .flat_map(|now| now.workers.iter().enumerate());
        let idle = workers.map(|(at, worker)| {
            let which = worker
                .core
                .map_or_else(|| at.to_string(), |core| format!("core {core}"));
            format!("worker {which} idle {:.1} %", worker.idle * 100.0)
        });
        Line::styled(idle.collect::<Vec<_>>().join("  "), DIM)
    }

    fn keys(&self, shown: usize) -> Line<'_> {
        let all = self.now.as_ref().map_or(0, |now| now.lanes.len());
        let keys = format!(
            "q quit  space pause  s sort: {}  r plots anew",
            self.order.name()
        );
        let part = if shown < all {
            format!(
                "  up/down lanes {}-{} of {all}",
                self.first + 1,
                self.first + shown
            )
        } else {
            String::new()
        };
        Line::styled(keys + &part, DIM)
    }

    fn render_ports(&self, area: Rect, buffer: &mut Buffer) {
        let Some(now) = &self.now else { return };
        let width = now.ports.iter().map(|port| port.name.chars().count()).max();
        let row = |port: &PortSnapshot| {
            let (mut rx, mut tx) = ([0.0; 2], [0.0; 2]);
            for lane in &now.lanes {
                if lane.rx == port.name {
                    rx = [rx[0] + lane.rates.rx_pps, rx[1] + lane.rates.rx_bps];
                }
                if lane.tx == port.name {
                    tx = [tx[0] + lane.rates.tx_pps, tx[1] + lane.rates.tx_bps];
                }
            }
            let state = Style::new();
            let state = if port.state == PortState::Up {
                state
            } else {
                BAD
            };
            let count = |count: u64| {
                let style = if count > 0 { BAD } else { Style::new() };
                Line::styled(count.to_string(), style).right_aligned()
            };
            Row::new([
                Line::raw(port.name.clone()),
                Line::styled(port.state.to_string(), state),
                right(si(rx[0])),
                right(si(rx[1])),
                right(si(tx[0])),
                right(si(tx[1])),
                count(port.dropped),
                count(port.kernel_drops),
            ])
        };
        let head = [
            "port",
            "state",
            "in pps",
            "in bit/s",
            "out pps",
            "out bit/s",
            "dropped",
            "kernel drops",
        ];
        let head = head.into_iter().enumerate().map(|(at, text)| match at {
            0 | 1 => Line::raw(text),
            _ => right(text.into()),
        });
        let widths = [name_width(width), 5, 9, 9, 9, 9, 9, 12].map(Constraint::Length);
        let table = Table::new(now.ports.iter().map(row), widths);
        Widget::render(table.header(Row::new(head).style(HEAD)), area, buffer);
    }

    fn render_lanes(&self, area: Rect, buffer: &mut Buffer) {
        let lanes = self.lanes();
        let width = lanes.iter().map(|lane| lane.name.chars().count()).max();
        let columns = [name_width(width), 9, 9, 9, 6, 4, 5].map(Constraint::Length);
        let columns: Vec<Constraint> = columns.into_iter().chain([Constraint::Fill(1)]).collect();
        let row = |lane: &&LaneSnapshot| {
            let lost_pps = self.newest(&lane.name).lost_pps;
            let name = if self.is_marked(lane) {
                BAD
            } else {
                Style::new()
            };
            let losing = if lost_pps > 0.0 { BAD } else { Style::new() };
            Row::new([
                Line::styled(lane.name.clone(), name),
                right(si(lane.rates.rx_pps)),
                right(si(lane.rates.tx_pps)),
                Line::styled(si(lost_pps), losing).right_aligned(),
                right(lane.held.to_string()),
                right(pool_share(lane)),
                right(lane.tx_room.to_string()),
            ])
        };
        let head = [
            "lane", "in pps", "out pps", "lost/s", "held", "pool", "room",
        ];
        let head = head.into_iter().enumerate().map(|(at, text)| match at {
            0 => Line::raw(text),
            _ => right(text.into()),
        });
        let head = head.chain([Line::raw(format!(
            "in pps, each {} s",
            self.every.as_secs_f64()
        ))]);
        let rows = lanes.iter().skip(self.first).map(row);
        let table = Table::new(rows, columns.clone()).header(Row::new(head).style(HEAD));
        Widget::render(table, area, buffer);

        let split = Layout::horizontal(columns).spacing(1).split(area);
        let Some(plots) = split.last() else { return };
        for (at, lane) in lanes.iter().skip(self.first).enumerate() {
            let y = u16::try_from(at + 1).unwrap_or(u16::MAX);
            if y >= area.height {
                break;
            }
            self.plot(lane)
                .render(Rect::new(plots.x, area.y + y, plots.width, 1), buffer);
        }
    }

    /// The newest at the right; intervals with losses in the colour of losses.
    fn plot(&self, lane: &LaneSnapshot) -> Sparkline<'static> {
        let bars = self.points(&lane.name).map(|point| {
            let style = if point.lost_pps > 0.0 { BAD } else { PLOT };
            SparklineBar::from(point.rx_pps as u64).style(Some(style))
        });
        let bars: Vec<SparklineBar> = bars.collect();
        let set = if self.utf8 {
            bar::NINE_LEVELS
        } else {
            ASCII_BARS
        };
        Sparkline::default()
            .direction(RenderDirection::RightToLeft)
            .bar_set(set)
            .data(bars)
    }

    fn render_losses(&self, area: Rect, buffer: &mut Buffer) {
        let losing = self.losing();
        let mut lines = Vec::new();
        if losing.is_empty() && self.now.is_some() {
            lines.push(Line::styled("nothing lost", DIM));
        }
        for lane in losing {
            let mut text = format!("{} lost {}:", lane.name, lost(lane));
            for (reason, count) in &lane.dropped {
                text += &format!(" {reason} {count}");
            }
            if lane.kernel_drops > 0 {
                text += &format!(" kernel_drops {}", lane.kernel_drops);
            }
            let style = if self.is_marked(lane) {
                BAD
            } else {
                Style::new()
            };
            lines.push(Line::styled(text, style));
        }
        for (lane, link) in self.links() {
            lines.push(Line::raw(format!("link {} {}", lane.name, link.lateness)));
        }
        for (y, line) in area.rows().zip(lines) {
            line.render(y, buffer);
        }
    }
}

/// How much of a lane's pool is in use; a lane of the kernel has none.
fn pool_share(lane: &LaneSnapshot) -> String {
    match lane.pool_size {
        0 => "-".into(),
        size => format!("{}%", lane.pool_used * 100 / size),
    }
}

fn right(text: String) -> Line<'static> {
    Line::raw(text).right_aligned()
}

/// Names are cut at 21 letters, which leaves 15 columns to a plot on a terminal of 80.
fn name_width(longest: Option<usize>) -> u16 {
    longest.unwrap_or(0).clamp(8, 21) as u16
}

/// What was drawn, as text without colours.
pub(super) fn plain(buffer: &Buffer) -> Plain {
    let width = usize::from(buffer.area.width.max(1));
    let rows = buffer.content.chunks(width).map(|row| {
        let text: String = row.iter().map(|cell| cell.symbol()).collect();
        text.trim_end().to_owned()
    });
    let mut lines: Vec<String> = rows.collect();
    // The keys mean nothing there.
    lines.pop();
    while lines.last().is_some_and(String::is_empty) {
        lines.pop();
    }
    Plain(lines.join("\n"))
}

/// Lines of text.
#[derive(serde::Serialize)]
pub(super) struct Plain(String);

impl fmt::Display for Plain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use ratatui::{Terminal, backend::TestBackend};

    use super::*;
    use crate::{
        cli::top::model::{Key, News},
        snapshot::{Snapshot, WorkerSnapshot},
        stats::{Levels, Reason, Tally},
    };

    /// After so many seconds, `pairs` pairs that got 1000 packets a second; the first of them lost some of late.
    fn snapshot(seconds: u64, pairs: u64, lost: u64) -> News {
        let name = |at: u64| format!("p{at}");
        let lane = |at: u64| {
            let (rx, tx) = (name(at), name(at ^ 1));
            let mut dropped = [0; Reason::COUNT];
            dropped[Reason::TxFull as usize] = if at == 0 { lost } else { 0 };
            let rx_packets = seconds * 1000 * (at + 1);
            let tally = Tally {
                rx_packets,
                rx_bytes: rx_packets * 100,
                tx_packets: rx_packets - dropped.iter().sum::<u64>(),
                tx_bytes: rx_packets * 100,
                dropped,
                ..Tally::default()
            };
            let levels = Levels {
                pool_used: 30,
                pool_size: 40,
                tx_room: 57,
            };
            LaneSnapshot::new(format!("{rx}>{tx}"), rx, tx, tally, levels)
        };
        let state = |at| {
            if at == 1 {
                PortState::Down
            } else {
                PortState::Up
            }
        };
        let ports = (0..2 * pairs).map(|at| (name(at), state(at), 0)).collect();
        let lanes = (0..2 * pairs).map(lane).collect();
        let worker = WorkerSnapshot {
            busy_s: seconds as f64 / 4.0,
            asleep_s: seconds as f64 * 0.75,
            ..WorkerSnapshot::default()
        };
        let times = [Duration::from_secs(seconds); 2];
        News::Snapshot(Box::new(Snapshot::new(
            times,
            false,
            ports,
            lanes,
            vec![worker],
        )))
    }

    fn screen(top: &mut Top, width: u16, height: u16) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        top.resize(height);
        terminal
            .draw(|frame| frame.render_widget(&*top, frame.area()))
            .unwrap();
        let buffer = terminal.backend().buffer();
        let rows = buffer.content.chunks(width.into());
        rows.map(|row| row.iter().map(|cell| cell.symbol()).collect::<String>())
            .map(|line| line.trim_end().to_owned())
            .collect()
    }

    fn top(pairs: u64) -> Top {
        let mut top = Top::new("p0-p1", Duration::from_secs(1), true);
        for (seconds, lost) in [(10, 0), (11, 0), (12, 500), (13, 500)] {
            top.update(snapshot(seconds, pairs, lost));
        }
        top
    }

    #[test]
    fn eighty_by_twenty_four() {
        let shown = screen(&mut top(1), 80, 24);
        let expected = [
            "l2relay p0-p1  up 00:00:13  2 ports  2 lanes  every 1 s",
            "port     state    in pps  in bit/s   out pps out bit/s   dropped kernel drops",
            "p0       up      1.000 k 800.000 k   2.000 k   1.600 M         0            0",
            "p1       down    2.000 k   1.600 M   1.000 k 800.000 k       500            0",
            "",
            "lane        in pps   out pps    lost/s   held pool  room in pps, each 1 s",
            "p0>p1      1.000 k   1.000 k         0      0  75%    57                     ███",
            "p1>p0      2.000 k   2.000 k         0      0  75%    57                     ███",
            "worker 0 idle 75.0 %",
            "p0>p1 lost 500: tx_full 500",
        ];
        assert_eq!(shown[..10], expected, "{shown:#?}");
        assert!(shown[10..23].iter().all(String::is_empty));
        assert_eq!(
            shown[23],
            "q quit  space pause  s sort: pairs  r plots anew"
        );
    }

    #[test]
    fn a_link_says_how_late_it_is() {
        let mut top = Top::new("p0-p1", Duration::from_secs(1), true);
        let News::Snapshot(mut news) = snapshot(1, 1, 0) else {
            panic!("a snapshot")
        };
        let link = crate::stage::link::Link::new(Default::default(), "a>b");
        let mut link = link.handle().snapshot();
        (link.lateness.p50_ns, link.lateness.p99_ns) = (12_300, 45_600);
        link.lateness.max_ns = 78_900;
        news.lanes[0].link = Some(link);
        top.update(News::Snapshot(news));
        let shown = screen(&mut top, 80, 24);
        let wanted = "link p0>p1 late by 12.3 us (half), 45.6 us (99 %), 78.9 us (most)";
        assert_eq!(shown[9..11], ["nothing lost", wanted], "{shown:#?}");
    }

    #[test]
    fn losses_are_marked_until_the_marks_are_taken_away() {
        let mut top = top(1);
        let area = Rect::new(0, 0, 80, 24);
        let style = |top: &Top, x, y| {
            let mut buffer = Buffer::empty(area);
            top.render(area, &mut buffer);
            buffer[(x, y)].style()
        };
        let is_bad = |style: Style| {
            style.fg == Some(Color::Red) && style.add_modifier.contains(Modifier::BOLD)
        };
        // The lane, the interval in which it was (the one before the newest), the state of a port, the reason.
        for (x, y) in [(0, 6), (78, 6), (9, 3), (0, 9)] {
            assert!(is_bad(style(&top, x, y)), "{x} {y}");
        }
        for (x, y) in [(0, 7), (79, 6), (77, 6), (9, 2)] {
            assert!(!is_bad(style(&top, x, y)), "{x} {y}");
        }
        top.press(Key::Anew);
        assert!(!is_bad(style(&top, 0, 6)) && !is_bad(style(&top, 0, 9)));
        top.update(snapshot(14, 1, 501));
        assert!(is_bad(style(&top, 0, 6)) && is_bad(style(&top, 79, 6)));
    }

    #[test]
    fn many_lanes_scroll_and_sort() {
        let mut top = top(32);
        let shown = screen(&mut top, 80, 24);
        let lanes = |shown: &[String]| -> Vec<String> {
            let named = shown
                .iter()
                .filter(|line| line.contains('>') && !line.contains("lost "));
            named
                .map(|line| line.split(' ').next().unwrap().to_owned())
                .collect()
        };
        assert_eq!(lanes(&shown)[..2], ["p0>p1", "p1>p0"]);
        let room = lanes(&shown).len();
        assert!(
            room >= 8 && shown[23].contains(&format!("lanes 1-{room} of 64")),
            "{shown:#?}"
        );
        top.press(Key::Scroll(isize::MAX));
        let shown = screen(&mut top, 80, 24);
        assert_eq!(lanes(&shown).last().unwrap(), "p63>p62");
        assert!(shown[23].contains("of 64"));
        // A larger window shows more, and nothing beyond the last.
        let shown = screen(&mut top, 80, 60);
        assert_eq!(lanes(&shown).last().unwrap(), "p63>p62");
        top.press(Key::Scroll(isize::MIN));
        for first in ["p0>p1", "p63>p62", "p0>p1"] {
            top.press(Key::Sort);
            assert_eq!(
                lanes(&screen(&mut top, 80, 24))[0],
                first,
                "{}",
                top.order.name()
            );
        }
    }

    #[test]
    fn pauses_restarts_and_silence_are_told() {
        let mut top = top(1);
        top.press(Key::Pause);
        top.update(snapshot(20, 1, 500));
        assert!(screen(&mut top, 80, 24)[0].starts_with("PAUSED l2relay p0-p1  up 00:00:13"));
        top.press(Key::Pause);
        top.update(News::Silent("relay p0-p1 has ended".into()));
        assert!(
            screen(&mut top, 120, 24)[0]
                .starts_with("WAITING l2relay p0-p1  relay p0-p1 has ended")
        );
        // Started anew: no rates from before, and no plot.
        top.update(snapshot(1, 1, 500));
        let shown = screen(&mut top, 80, 24);
        assert!(
            !shown[0].contains("WAITING") && !shown[6].contains('█'),
            "{shown:#?}"
        );
        assert_eq!(top.points("p0>p1").count(), 0);
    }

    #[test]
    fn any_size_will_do() {
        for pairs in [0, 1, 32] {
            let mut top = top(pairs);
            for (width, height) in [(1, 1), (5, 2), (20, 5), (79, 7), (300, 100)] {
                screen(&mut top, width, height);
            }
            let area = Rect::new(0, 0, 80, top.height());
            let mut buffer = Buffer::empty(area);
            top.resize(area.height);
            top.render(area, &mut buffer);
            let text = plain(&buffer).to_string();
            assert_eq!(
                text.lines()
                    .filter(|line| line.starts_with('p')
                        && line.contains('>')
                        && !line.contains("lost"))
                    .count() as u64,
                2 * pairs
            );
            assert!(!text.contains("q quit"));
        }
    }

    #[test]
    fn a_terminal_without_utf8_gets_ascii() {
        let mut top = top(1);
        top.utf8 = false;
        assert!(screen(&mut top, 80, 24).iter().all(|line| line.is_ascii()));
    }
}
