//! A link's text as words, taken one after the other by the grammar.

use super::PARTS;

/// One of these can stand where any word is bad: a time (and a length), a rate, a percentage, a number (and a size), names.
const SAMPLES: [&str; 7] = ["1ms", "1mbit", "1%", "1", "uniform", "down", "rate"];

/// Words, and how many of them are taken.
pub(super) struct Words<'a> {
    words: Vec<&'a str>,
    at: usize,
}

impl<'a> Words<'a> {
    /// At spaces; what is in quotes, such as a file's name, is one word.
    pub(super) fn split(text: &'a str) -> Result<Self, String> {
        let (mut words, mut rest) = (Vec::new(), text.trim_start());
        while let Some(first) = rest.chars().next() {
            let (word, behind) = match first {
                '"' | '\'' => rest[1..].split_once(first).ok_or_else(|| {
                    format!("{}: the quote is not closed", crate::text::beginning(rest))
                })?,
                _ => rest.split_once(char::is_whitespace).unwrap_or((rest, "")),
            };
            words.push(word);
            rest = behind.trim_start();
        }
        Ok(Self { words, at: 0 })
    }

    /// How many words are taken.
    pub(super) fn at(&self) -> usize {
        self.at
    }

    pub(super) fn next(&mut self) -> Option<&'a str> {
        let word = self.peek()?;
        self.at += 1;
        Some(word)
    }

    pub(super) fn peek(&self) -> Option<&'a str> {
        self.words.get(self.at).copied()
    }

    /// Takes the next word if it is this one.
    pub(super) fn has(&mut self, word: &str) -> bool {
        let there = self.peek() == Some(word);
        self.at += usize::from(there);
        there
    }

    /// On to the next part; gives what was passed.
    pub(super) fn skip(&mut self) -> Vec<&'a str> {
        let rest = self.words[self.at..].iter().copied();
        let rest: Vec<_> = rest.take_while(|word| !PARTS.contains(word)).collect();
        self.at += rest.len();
        rest
    }

    /// Puts a word that can be read in the place of the one that could not, which is the next, and goes back to `begin`; false if
    /// none helps `part` beyond it.
    pub(super) fn stand_in(&mut self, begin: usize, mut part: impl FnMut(&mut Self)) -> bool {
        let bad = self.at;
        let word = self.words.get(bad).copied();
        let Some(word) = word.filter(|word| !PARTS.contains(word)) else {
            return false;
        };
        for sample in SAMPLES {
            (self.words[bad], self.at) = (sample, begin);
            part(self);
            if self.at > bad {
                self.at = begin;
                return true;
            }
        }
        (self.words[bad], self.at) = (word, bad);
        false
    }

    /// The value behind the next word.
    pub(super) fn argument<T>(
        &mut self,
        what: &str,
        parse: impl FnOnce(&str) -> Result<T, String>,
    ) -> Result<T, String> {
        self.next();
        self.value(what, parse)
    }

    /// The value that must come now.
    pub(super) fn value<T>(
        &mut self,
        what: &str,
        parse: impl FnOnce(&str) -> Result<T, String>,
    ) -> Result<T, String> {
        let word = self.peek().filter(|word| !PARTS.contains(word));
        let word = word.ok_or_else(|| format!("{what} is missing"))?;
        let value = parse(word)?;
        self.at += 1;
        Ok(value)
    }

    /// The value that may come now: a word that begins with a digit, a sign or a point is taken for one.
    pub(super) fn maybe<T>(
        &mut self,
        parse: impl FnOnce(&str) -> Result<T, String>,
    ) -> Result<Option<T>, String> {
        let is_number = |word: &&str| word.starts_with(|c: char| "+-.0123456789".contains(c));
        let Some(word) = self.peek().filter(is_number) else {
            return Ok(None);
        };
        let value = parse(word)?;
        self.at += 1;
        Ok(Some(value))
    }

    /// The value of an option, if that comes now.
    pub(super) fn option<T>(
        &mut self,
        name: &str,
        parse: impl FnOnce(&str) -> Result<T, String>,
    ) -> Result<Option<T>, String> {
        if !self.has(name) {
            return Ok(None);
        }
        self.value(&format!("the value of {name}"), parse).map(Some)
    }
}
