//! Configuration files: TOML whose keys are the options of `l2relay run`.
//!
//! Every key is an option by its long name, a list gives it several times (or joins its parts by commas where it is given once),
//! `true` stands for an option without a value, `false` for its absence. So a file can say exactly what a command line can, and what a command line says goes before it.

use std::{collections::HashMap, ffi::OsString, path::Path};

use clap::{ArgAction, ArgMatches, Args, Command, Parser, parser::ValueSource};
use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

use super::{
    log::LogFormat,
    run::{RunArgs, Settings},
};
use crate::{config::Config, error::Error, text};

/// What a relay was told to be: by a file perhaps, and by its command line. Kept to be read again.
#[derive(Clone, Debug)]
pub struct Source {
    args: RunArgs,
    given: Vec<OsString>,
}

/// One value of an option, as a command line would have it, and the line of the file that it is from.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry {
    option: String,
    /// `None`: the option without a value.
    value: Option<String>,
    line: usize,
}

/// The longest file, in bytes.
const FILE_MAX: u64 = 16 << 20;
/// Most values of an option in a file: a pair has two directions and two ports.
const VALUES_MAX: usize = 2 * Config::PAIRS_MAX;
/// The option that says how messages are written.
const LOG_FORMAT: &str = "log-format";

/// The options of `l2relay run`, and nothing else.
#[derive(Parser)]
#[command(no_binary_name = true)]
struct Options {
    #[command(flatten)]
    args: RunArgs,
}

impl Source {
    /// What the command line says: `matches` of `l2relay run`, and what clap made of them.
    pub fn new(matches: &ArgMatches, args: RunArgs) -> Self {
        let mut given = Vec::new();
        for option in options().get_arguments() {
            let (id, Some(long)) = (option.get_id().as_str(), option.get_long()) else {
                continue;
            };
            if matches.value_source(id) != Some(ValueSource::CommandLine) {
                continue;
            }
            match matches.get_raw(id).filter(|_| takes_value(option)) {
                Some(values) => given.extend(values.map(|value| {
                    let mut word = OsString::from(format!("--{long}="));
                    word.push(value);
                    word
                })),
                None => given.push(format!("--{long}").into()),
            }
        }
        Self { args, given }
    }

    /// Whether there is a file, which may have changed.
    pub fn has_file(&self) -> bool {
        self.args.config.is_some()
    }

    /// How to write messages before all of it is known to be right: also that it is not.
    pub fn log_format(&self) -> LogFormat {
        let file = || {
            let text = text::read(self.args.config.as_ref()?, FILE_MAX).ok()?;
            let mut entries = entries(&text).ok()?.0.into_iter();
            entries.find(|entry| entry.option == LOG_FORMAT)?.value
        };
        let given = self.is_given(LOG_FORMAT);
        let in_file = (!given).then(file).flatten();
        let text = in_file.unwrap_or_else(|| self.args.log_format.clone());
        text.parse().unwrap_or_default()
    }

    /// Reads all of it. With `machine`, it is held against the machine as well.
    ///
    /// # Errors
    /// Every mistake at once; those of the file with its line.
    pub fn settings(&self, machine: bool) -> Result<Settings, Error> {
        let Some(path) = &self.args.config else {
            return self.args.settings(machine);
        };
        let text = text::read(path, FILE_MAX).map_err(|source| {
            let remedy = "name a file of TOML that may be read";
            Error::system("read", path.display().to_string(), source, remedy)
        })?;
        self.read(path, &text, machine)
    }

    fn read(&self, path: &Path, text: &str, machine: bool) -> Result<Settings, Error> {
        let (mut entries, mut mistakes) = entries(text).map_err(|(line, mistake)| {
            Error::Config(vec![format!("{}:{line}: {mistake}", path.display())])
        })?;
        entries.retain(|entry| !self.is_given(&entry.option));
        let settings = |entries: &[Entry]| -> Result<Settings, Vec<String>> {
            let words = entries.iter().map(Entry::word);
            let words = words.chain(self.given.iter().cloned());
            let args = Options::try_parse_from(words)
                .map_err(|error| vec![error.to_string().trim().to_owned()])?
                .args;
            args.settings(machine).map_err(|error| match error {
                Error::Config(mistakes) => mistakes,
                other => vec![other.to_string()],
            })
        };
        match settings(&entries) {
            Ok(settings) if mistakes.is_empty() => return Ok(settings),
            Ok(_) => {}
            Err(found) => {
                let made = |entries: &[Entry]| settings(entries).err().unwrap_or_default();
                let blamed = blame(&entries, &found, made);
                let line = |at: Option<usize>| at.map_or(0, |at| entries[at].line);
                mistakes.extend(blamed.into_iter().map(line).zip(found));
            }
        }
        mistakes.sort_by_key(|(line, _)| *line);
        let path = path.display();
        let told = mistakes.into_iter().map(|(line, mistake)| match line {
            0 => format!("{path}: {mistake}"),
            line => format!("{path}:{line}: {mistake}"),
        });
        Err(Error::Config(told.collect()))
    }

    fn is_given(&self, option: &str) -> bool {
        self.given
            .iter()
            .filter_map(|word| word.to_str())
            .any(|word| {
                let name = word.trim_start_matches("--");
                name.split_once('=').map_or(name, |(name, _)| name) == option
            })
    }
}

impl Entry {
    fn word(&self) -> OsString {
        match &self.value {
            Some(value) => format!("--{}={value}", self.option).into(),
            None => format!("--{}", self.option).into(),
        }
    }
}

/// Which entry makes each mistake: the last without which it would not be made. To find it, all is read again and again: where there
/// is much to read, it is the one with which the mistake is first made, and for the last of many mistakes nothing is said.
fn blame(
    entries: &[Entry],
    found: &[String],
    mistakes: impl Fn(&[Entry]) -> Vec<String>,
) -> Vec<Option<usize>> {
    /// Entries that are read, a microsecond or two each.
    const WORK_MAX: usize = 250_000;
    let limit = WORK_MAX / entries.len().max(1);
    if entries.len() <= limit {
        let without = |at: usize| mistakes(&[&entries[..at], &entries[at + 1..]].concat());
        let without: Vec<_> = (0..entries.len()).map(without).collect();
        let blamed = |mistake| without.iter().rposition(|made| !made.contains(mistake));
        return found.iter().map(blamed).collect();
    }
    let mut known = HashMap::new();
    let mut blamed = |mistake: &String| {
        // It is not made by the first `no` entries, and by the first `yes`.
        let (mut no, mut yes) = (0, entries.len());
        while yes - no > 1 {
            let middle = usize::midpoint(no, yes);
            if known.len() >= limit && !known.contains_key(&middle) {
                return None;
            }
            let read = || mistakes(&entries[..middle]);
            match known.entry(middle).or_insert_with(read).contains(mistake) {
                true => yes = middle,
                false => no = middle,
            }
        }
        Some(no)
    };
    found.iter().map(&mut blamed).collect()
}

/// The options of `l2relay run`.
pub(super) fn options() -> Command {
    RunArgs::augment_args(Command::new("run"))
}

/// Their names in a file.
fn names() -> Vec<String> {
    let options = options();
    let names = options
        .get_arguments()
        .filter_map(|option| option.get_long());
    names
        .filter(|name| !matches!(*name, "config" | "help"))
        .map(str::to_owned)
        .collect()
}

fn takes_value(option: &clap::Arg) -> bool {
    matches!(option.get_action(), ArgAction::Set | ArgAction::Append)
}

/// What is wrong in a file, and in which line.
type Mistake = (usize, String);

/// What a file gives, in the order of its lines, and its mistakes with theirs.
///
/// # Errors
/// An option has more values than are looked at.
fn entries(text: &str) -> Result<(Vec<Entry>, Vec<Mistake>), Mistake> {
    let ends: Vec<usize> = text.match_indices('\n').map(|(at, _)| at).collect();
    let line = |at: usize| ends.partition_point(|end| *end < at) + 1;
    let (table, errors) = DeTable::parse_recoverable(text);
    let mut mistakes: Vec<Mistake> = errors
        .iter()
        .map(|error| {
            let at = error.span().map_or(0, |span| line(span.start));
            (at, error.message().trim().to_owned())
        })
        .collect();
    let mut entries = Vec::new();
    let options = options();
    for (key, value) in table.get_ref() {
        let at = line(key.span().start);
        let name = key.get_ref().as_ref();
        let option = options
            .get_arguments()
            .find(|option| option.get_long() == Some(name))
            .filter(|_| !matches!(name, "config" | "help"));
        let Some(option) = option else {
            let names = names().join(", ");
            mistakes.push((at, format!("{name}: no such option: there are {names}")));
            continue;
        };
        let max = match name {
            "pair" | "hairpin" => Config::PAIRS_MAX,
            _ => VALUES_MAX,
        };
        match values(value, option) {
            Ok(values) if values.len() > max => {
                let count = values.len();
                return Err((at, format!("{name}: {count} values: at most {max}")));
            }
            Ok(values) => entries.extend(values.into_iter().map(|(value, at)| Entry {
                option: name.to_owned(),
                value,
                line: line(at),
            })),
            Err(mistake) => mistakes.push((at, format!("{name}: {mistake}"))),
        }
    }
    entries.sort_by_key(|entry| entry.line);
    Ok((entries, mistakes))
}

/// The values of a key, and where they begin.
fn values(
    value: &Spanned<DeValue<'_>>,
    option: &clap::Arg,
) -> Result<Vec<(Option<String>, usize)>, String> {
    let at = value.span().start;
    let needs_none = !takes_value(option);
    let range = option.get_num_args();
    let may_stand_alone = needs_none || range.is_some_and(|range| range.min_values() == 0);
    match value.get_ref() {
        DeValue::Boolean(true) if may_stand_alone => return Ok(vec![(None, at)]),
        DeValue::Boolean(false) if may_stand_alone => return Ok(Vec::new()),
        _ if needs_none => return Err("write true or false".to_owned()),
        _ => {}
    }
    match value.get_ref() {
        DeValue::Array(values) if matches!(option.get_action(), ArgAction::Append) => values
            .iter()
            .map(|value| Ok((Some(scalar(value.get_ref())?), value.span().start)))
            .collect(),
        value => Ok(vec![(Some(scalar(value)?), at)]),
    }
}

/// A value as text; the parts of a list are joined by commas.
fn scalar(value: &DeValue<'_>) -> Result<String, String> {
    match value {
        DeValue::String(text) => Ok(text.to_string()),
        DeValue::Integer(number) if number.radix() == 10 => Ok(number.as_str().replace('_', "")),
        DeValue::Float(number) => Ok(number.as_str().replace('_', "")),
        DeValue::Array(parts) => {
            let parts: Result<Vec<String>, String> =
                parts.iter().map(|part| scalar(part.get_ref())).collect();
            Ok(parts?.join(","))
        }
        _ => Err("write a string, a number or a list of them".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(words: &[&str]) -> Source {
        let matches = options()
            .no_binary_name(true)
            .try_get_matches_from(words)
            .unwrap();
        let args = <RunArgs as clap::FromArgMatches>::from_arg_matches(&matches).unwrap();
        Source::new(&matches, args)
    }

    fn read(words: &[&str], text: &str) -> Result<Settings, Vec<String>> {
        let read = source(words).read(Path::new("f"), text, false);
        read.map_err(|error| error.to_string().lines().map(str::to_owned).collect())
    }

    #[test]
    fn a_file_says_what_a_command_line_says() {
        let text = r#"
            pair = [["a", "b"], "c,d"]
            hairpin = "e"
            cores = [0]
            queues = 2
            no-promisc = true
            qdisc = false
            stats-interval = 0.5
            dst-mac = ["a=02:00:00:00:00:01"]
            mac = "update"
        "#;
        let words = [
            "--pair=a,b",
            "--pair=c,d",
            "--hairpin=e",
            "--cores=0",
            "--queues=2",
            "--no-promisc",
            "--stats-interval=0.5",
            "--dst-mac=a=02:00:00:00:00:01",
            "--mac=update",
        ];
        let by_file = read(&[], text).unwrap();
        assert_eq!(by_file, source(&words).settings(false).unwrap());
        assert!(!by_file.config.promiscuous && !by_file.config.qdisc);
    }

    #[test]
    fn the_command_line_goes_before_the_file() {
        let text = "pair = ['a,b']\nmac = 'swap'\nqueues = 3\njson = true";
        let settings = read(&["--pair=c,d", "--queues=4"], text).unwrap();
        let expected = source(&["--pair=c,d", "--queues=4", "--mac=swap", "--json"]);
        assert_eq!(settings, expected.settings(false).unwrap());
    }

    /// An option that may have a value is given without one by `true`.
    #[test]
    fn metrics_need_no_address() {
        for (text, words) in [
            ("metrics = true", vec!["--pair=a,b", "--metrics"]),
            ("metrics = false", vec!["--pair=a,b"]),
            ("metrics = 8080", vec!["--pair=a,b", "--metrics=8080"]),
        ] {
            let settings = read(&[], &format!("pair = 'a,b'\n{text}\n")).unwrap();
            assert_eq!(settings, source(&words).settings(false).unwrap(), "{text}");
        }
        let mistakes = read(&[], "pair = 'a,b'\nring = true\n").unwrap_err();
        assert!(mistakes[0].contains("write a string"), "{mistakes:?}");
    }

    #[test]
    fn every_mistake_has_its_line() {
        let text = "pair = [\n  'a,b',\n  'a,c',\n]\nqueues = 99\nmak = 'swap'\nmac = 'shuffle'\nqdisc = 1\n\
                    link = ['x>y delay 1ms']\n[table]\nring = 7\n";
        let mistakes = read(&[], text).unwrap_err();
        for (line, text) in [
            (3, "a is named 2 times"),
            (5, "--queues 99"),
            (6, "mak: no such option"),
            (7, "shuffle"),
            (8, "qdisc: write true or false"),
            (9, "no pair joins"),
            (10, "table: no such option"),
        ] {
            let told =
                |told: &&String| told.starts_with(&format!("f:{line}: ")) && told.contains(text);
            assert!(
                mistakes.iter().any(|mistake| told(&mistake)),
                "{line} {text} in {mistakes:#?}"
            );
        }
        assert_eq!(mistakes.len(), 7, "{mistakes:#?}");
        let broken = read(&[], "pair = ['a,b']\nmac = \nring == 7\n").unwrap_err();
        assert!(
            broken.iter().any(|told| told.starts_with("f:2: ")),
            "{broken:#?}"
        );
        assert!(
            broken.iter().any(|told| told.starts_with("f:3: ")),
            "{broken:#?}"
        );
    }

    /// A file with as many pairs as there may be is read in no time, and its mistakes have their lines; one with more is not read.
    #[test]
    fn a_long_file_is_read_in_no_time() {
        let text = |count: usize| {
            let pairs = (0..count).map(|at| format!("  'a{at},b{at}',\n"));
            format!("pair = [\n{}]\n", pairs.collect::<String>())
        };
        let most = text(Config::PAIRS_MAX);
        assert_eq!(read(&[], &most).unwrap().config.pairs.len(), 1024);
        let wrong = most
            .replace("'a600,b600'", "'a600,a600'")
            .replace("a900,", "a70,");
        let mistakes = read(&[], &wrong).unwrap_err();
        for (line, text) in [(602, "a600 twice"), (902, "a70 is named 2 times")] {
            let told = mistakes.iter().find(|told| told.contains(text));
            let told = told.unwrap_or_else(|| panic!("no {text} in {mistakes:#?}"));
            assert!(told.starts_with(&format!("f:{line}: ")), "{told}");
        }
        assert_eq!(mistakes.len(), 2, "{mistakes:#?}");
        let mistakes = read(&[], &text(200_000)).unwrap_err();
        assert_eq!(mistakes, ["f:1: pair: 200000 values: at most 1024"]);
        let hairpins = most + "hairpin = ['h']";
        let mistakes = read(&[], &hairpins).unwrap_err();
        assert!(
            mistakes[0].ends_with("1025 pairs: at most 1024"),
            "{mistakes:?}"
        );
    }
}
