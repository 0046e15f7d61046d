//! `l2relay check`: what this machine and its interfaces allow, and what to do about the rest.
//!
//! Called by the program, and by whoever embeds the library and wants to know before it starts a relay. It only looks:
//! nothing is changed, and no frame is received or sent.

mod machine;
mod port;
pub(crate) mod quota;

use std::fmt;

use serde::Serialize;

use crate::{
    config::PortName,
    text::{columns, visible},
};

/// What was found. Displayed it is a table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Report {
    /// Version of this structure in JSON: 1.
    pub version: u32,
    /// Whether a relay can run: there is no problem among the findings.
    pub ready: bool,
    /// The findings, those about the machine first.
    pub findings: Vec<Finding>,
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// How good it is.
    pub verdict: Verdict,
    /// What it is about: `machine`, or a port.
    pub subject: String,
    /// Which property of it.
    pub item: &'static str,
    /// What was found.
    pub text: String,
    /// What the user can do about it, for all that is not ok.
    pub remedy: Option<String>,
}

/// How good a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// As it should be.
    Ok,
    /// A relay can run, but the user should know.
    Note,
    /// A relay cannot run.
    Problem,
}

/// Looks at the machine and at these ports.
pub fn check(ports: &[PortName]) -> Report {
    let mut machine = Findings::about("machine");
    machine::examine(&mut machine);
    let mut findings = machine.all;
    let mut mtus = Vec::new();
    for name in ports {
        let mut port = Findings::about(name.to_string());
        mtus.extend(port::examine(name, &mut port).map(|mtu| (name, mtu)));
        findings.append(&mut port.all);
    }
    findings.extend(compare_mtus(&mtus));
    Report::new(findings)
}

/// Frames for the larger of two do not fit the smaller.
fn compare_mtus(mtus: &[(&PortName, u32)]) -> Option<Finding> {
    let (_, first) = mtus.first()?;
    if mtus.iter().all(|(_, mtu)| mtu == first) {
        return None;
    }
    let list: Vec<String> = mtus
        .iter()
        .map(|(name, mtu)| format!("{name} {mtu}"))
        .collect();
    let mut ports = Findings::about("ports");
    ports.note(
        "mtu",
        format!(
            "they differ ({}): what is too long for one of a pair is dropped",
            list.join(", ")
        ),
        "give the ports of a pair one MTU: ip link set dev PORT mtu N",
    );
    ports.all.pop()
}

impl Report {
    fn new(findings: Vec<Finding>) -> Self {
        let ready = findings
            .iter()
            .all(|finding| finding.verdict != Verdict::Problem);
        Self {
            version: 1,
            ready,
            findings,
        }
    }
}

/// Findings about one subject, while they are collected.
struct Findings {
    subject: String,
    all: Vec<Finding>,
}

impl Findings {
    fn about(subject: impl Into<String>) -> Self {
        Self {
            subject: subject.into(),
            all: Vec::new(),
        }
    }

    fn ok(&mut self, item: &'static str, text: impl Into<String>) {
        self.add(Verdict::Ok, item, text.into(), None);
    }

    fn note(&mut self, item: &'static str, text: impl Into<String>, remedy: impl Into<String>) {
        self.add(Verdict::Note, item, text.into(), Some(remedy.into()));
    }

    fn problem(&mut self, item: &'static str, text: impl Into<String>, remedy: impl Into<String>) {
        self.add(Verdict::Problem, item, text.into(), Some(remedy.into()));
    }

    fn add(&mut self, verdict: Verdict, item: &'static str, text: String, remedy: Option<String>) {
        self.all.push(Finding {
            verdict,
            subject: self.subject.clone(),
            item,
            text,
            remedy,
        });
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Ok => "ok",
            Self::Note => "note",
            Self::Problem => "problem",
        })
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width =
            |length: fn(&Finding) -> usize| self.findings.iter().map(length).max().unwrap_or(0);
        let subject = width(|finding| columns(&finding.subject));
        let item = width(|finding| finding.item.len());
        for finding in &self.findings {
            let Finding {
                verdict,
                subject: about,
                item: what,
                text,
                remedy,
            } = finding;
            let about = visible(about);
            writeln!(f, "{verdict:7}  {about:subject$}  {what:item$}  {text}")?;
            if let Some(remedy) = remedy {
                writeln!(f, "{:7}  {:subject$}  {:item$}  -> {remedy}", "", "", "")?;
            }
        }
        let problems = self
            .findings
            .iter()
            .filter(|finding| finding.verdict == Verdict::Problem);
        match problems.count() {
            0 => write!(f, "A relay can run."),
            1 => write!(f, "A relay cannot run: 1 problem."),
            problems => write!(f, "A relay cannot run: {problems} problems."),
        }
    }
}

/// Bytes in the largest unit that leaves no fraction worth a word.
fn size(bytes: u64) -> String {
    match bytes {
        0..1024 => format!("{bytes} bytes"),
        1024..1_048_576 => format!("{} KiB", bytes >> 10),
        1_048_576..1_073_741_824 => format!("{} MiB", bytes >> 20),
        _ => format!("{} GiB", bytes >> 30),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        let mut machine = Findings::about("machine");
        machine.ok("cpus", "two");
        machine.note("huge pages", "none", "get some");
        let mut findings = machine.all;
        let mut port = Findings::about("ns:eth0");
        port.problem("interface", "absent", "make it");
        findings.append(&mut port.all);
        Report::new(findings)
    }

    #[test]
    fn a_report_is_a_table() {
        let table = "\
ok       machine  cpus        two
note     machine  huge pages  none
                              -> get some
problem  ns:eth0  interface   absent
                              -> make it
A relay cannot run: 1 problem.";
        assert_eq!(report().to_string(), table);
    }

    #[test]
    fn a_report_is_json() {
        let json = serde_json::to_value(report()).unwrap();
        assert_eq!(json["version"], 1);
        assert_eq!(json["ready"], false);
        assert_eq!(json["findings"][0]["remedy"], serde_json::Value::Null);
        assert_eq!(
            json["findings"][2],
            serde_json::json!({
                "verdict": "problem", "subject": "ns:eth0", "item": "interface", "text": "absent", "remedy": "make it"
            })
        );
    }

    #[test]
    fn notes_do_not_hinder() {
        let mut machine = Findings::about("machine");
        machine.note("a", "b", "c");
        let report = Report::new(machine.all);
        assert!(report.ready);
        assert!(report.to_string().ends_with("A relay can run."));
    }

    #[test]
    fn different_mtus_are_noted_once() {
        let (a, b): (PortName, PortName) = ("a".parse().unwrap(), "ns:b".parse().unwrap());
        assert_eq!(compare_mtus(&[]), None);
        assert_eq!(compare_mtus(&[(&a, 1500), (&b, 1500)]), None);
        let finding = compare_mtus(&[(&a, 1500), (&b, 9000)]).unwrap();
        assert!(
            finding.text.contains("a 1500, ns:b 9000"),
            "{}",
            finding.text
        );
    }

    #[test]
    fn sizes_are_readable() {
        for (bytes, text) in [
            (12, "12 bytes"),
            (212_992, "208 KiB"),
            (8 << 20, "8 MiB"),
            (1 << 30, "1 GiB"),
        ] {
            assert_eq!(size(bytes), text);
        }
    }

    #[test]
    fn this_machine_can_be_checked() {
        let absent = "no-such-one".parse().unwrap();
        let report = check(&[absent]);
        assert!(!report.ready);
        let last = report.findings.last().unwrap();
        assert_eq!((last.verdict, last.item), (Verdict::Problem, "interface"));
        assert!(last.text.contains("no such interface"), "{}", last.text);
        let explained =
            |finding: &Finding| finding.remedy.is_some() == (finding.verdict != Verdict::Ok);
        assert!(report.findings.iter().all(explained), "{report}");
    }
}
