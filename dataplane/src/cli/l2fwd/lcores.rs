//! Lists of logical cores as EAL writes them: `1,3-5`, `0x2a`, `0-1@(4,5),2@6`.

use std::collections::BTreeSet;

/// Lcores are numbered below this (RTE_MAX_LCORE of a large build); CPUs in a `cpu_set_t` likewise.
const MAX: usize = 1024;

/// A logical core, and the CPUs it may run on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Lcore {
    pub(super) id: usize,
    pub(super) cpus: Vec<usize>,
}

impl Lcore {
    /// The core that is the CPU of the same number.
    pub(super) fn plain(id: usize) -> Self {
        Self { id, cpus: vec![id] }
    }
}

/// `-c`: a hexadecimal mask.
pub(super) fn mask(text: &str) -> Result<Vec<Lcore>, String> {
    let bad = || format!("-c {text:?}: write a hexadecimal mask of cores, such as 0x3");
    let digits = text.trim_start_matches("0x").trim_start_matches("0X");
    let mut cores = Vec::new();
    for (at, digit) in digits.chars().rev().enumerate() {
        let digit = digit.to_digit(16).ok_or_else(bad)?;
        cores.extend(
            (0..4)
                .filter(|bit| digit >> bit & 1 == 1)
                .map(|bit| at * 4 + bit),
        );
    }
    match cores.last() {
        Some(last) if *last < MAX => Ok(cores.into_iter().map(Lcore::plain).collect()),
        _ => Err(bad()),
    }
}

/// `-l` and `--lcores`: cores and ranges, each perhaps with the CPUs it runs on. In order of their numbers.
pub(super) fn list(option: &str, text: &str) -> Result<Vec<Lcore>, String> {
    let bad = || {
        format!(
            "{option} {text:?}: write cores and ranges such as 1,3-5, or with their CPUs as 0@1,(2,3)@(4-7)"
        )
    };
    let mut cores: Vec<Lcore> = Vec::new();
    for item in split(text).ok_or_else(bad)? {
        let (ids, cpus) = match item.split_once('@') {
            Some((ids, cpus)) => (set(ids).ok_or_else(bad)?, Some(set(cpus).ok_or_else(bad)?)),
            None => (set(item).ok_or_else(bad)?, None),
        };
        // A group in parentheses shares the CPUs of its own numbers.
        let shared = cpus.or_else(|| item.starts_with('(').then(|| ids.clone()));
        for id in &ids {
            let cpus = shared
                .as_ref()
                .unwrap_or(&BTreeSet::from([*id]))
                .iter()
                .copied()
                .collect();
            match cores.iter_mut().find(|core| core.id == *id) {
                Some(core) => core.cpus = cpus,
                None => cores.push(Lcore { id: *id, cpus }),
            }
        }
    }
    cores.sort_by_key(|core| core.id);
    if cores.is_empty() {
        Err(bad())
    } else {
        Ok(cores)
    }
}

/// Splits at the commas outside of parentheses.
fn split(text: &str) -> Option<Vec<&str>> {
    let (mut items, mut from, mut inside) = (Vec::new(), 0, false);
    for (at, c) in text.char_indices() {
        match (c, inside) {
            ('(', false) => inside = true,
            (')', true) => inside = false,
            ('(' | ')', _) => return None,
            (',', false) => {
                items.push(text[from..at].trim());
                from = at + 1;
            }
            _ => {}
        }
    }
    items.push(text[from..].trim());
    (!inside).then_some(items)
}

/// `3`, `3-5` or `(3,5-7)`.
fn set(text: &str) -> Option<BTreeSet<usize>> {
    let text = text.trim();
    let inner = match text.strip_prefix('(') {
        Some(rest) => rest.strip_suffix(')')?,
        None if text.contains(',') => return None,
        None => text,
    };
    let mut all = BTreeSet::new();
    for part in inner.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let [first, last] = [first, last].map(|number| number.trim().parse::<usize>().ok());
        let (first, last) = (first?, last?);
        if first > last || last >= MAX {
            return None;
        }
        all.extend(first..=last);
    }
    Some(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cores(text: &str) -> Vec<(usize, Vec<usize>)> {
        let list = list("-l", text).unwrap();
        list.into_iter().map(|core| (core.id, core.cpus)).collect()
    }

    #[test]
    fn lists_are_those_of_eal() {
        assert_eq!(cores("1"), [(1, vec![1])]);
        assert_eq!(cores("3-4,1"), [(1, vec![1]), (3, vec![3]), (4, vec![4])]);
        assert_eq!(cores("0@5,2@(6,7)"), [(0, vec![5]), (2, vec![6, 7])]);
        assert_eq!(cores("(0,1)@4"), [(0, vec![4]), (1, vec![4])]);
        assert_eq!(cores("(0-1)"), [(0, vec![0, 1]), (1, vec![0, 1])]);
        for bad in [
            "", "a", "3-1", "1,", "(1", "1)", "1@", "@1", "1@(2", "4096", "-1", "((1))",
        ] {
            assert!(list("-l", bad).unwrap_err().starts_with("-l"), "{bad}");
        }
    }

    #[test]
    fn masks_are_hexadecimal() {
        let ids = |text| {
            mask(text)
                .unwrap()
                .into_iter()
                .map(|core| core.id)
                .collect::<Vec<_>>()
        };
        assert_eq!(ids("2"), [1]);
        assert_eq!(ids("0x13"), [0, 1, 4]);
        for bad in ["", "0", "0x", "g", "-1"] {
            assert!(mask(bad).is_err(), "{bad}");
        }
    }
}
