//! Where a capture goes: a file, standard output, or lines there.
//!
//! A file ends with a whole block whatever happens, so that it can be read.

use std::{
    fmt,
    fs::{self, File},
    io::{self, Seek, SeekFrom, Write},
};

use crate::error::Error;

/// An output that is open.
pub(super) enum Output {
    /// A file, or what is written like one.
    File(Written),
    /// Standard output.
    Standard,
    /// A line for each frame, to standard output.
    Lines,
}

/// Where blocks are written.
pub(super) struct Written {
    file: File,
    path: String,
    /// How many bytes of whole blocks are in it.
    whole: u64,
    /// It was not there before.
    made: bool,
}

impl Drop for Written {
    fn drop(&mut self) {
        // Nobody wants a file in which there is nothing.
        if self.made && self.whole == 0 {
            let _ = fs::remove_file(&self.path);
        }
    }
}

impl Output {
    /// Opens what `-w` names; what is in a file stays there until it [begins](Output::begin). At a pipe it waits for a reader.
    ///
    /// # Errors
    /// The file can't be made.
    pub(super) fn open(name: Option<&str>) -> Result<Self, Error> {
        match name {
            None => Ok(Self::Lines),
            Some("-") => Ok(Self::Standard),
            Some(path) => match make(path) {
                Ok((file, made)) => Ok(Self::File(Written {
                    file,
                    path: path.to_owned(),
                    whole: 0,
                    made,
                })),
                Err(source) => Err(not_written(path, source)),
            },
        }
    }

    /// Empties it: the frames come.
    ///
    /// # Errors
    /// The file can't be changed.
    pub(super) fn begin(&self) -> Result<(), Error> {
        let Self::File(Written { file, path, .. }) = self else {
            return Ok(());
        };
        let empty = || match file.metadata()?.is_file() {
            true => file.set_len(0),
            false => Ok(()),
        };
        empty().map_err(|source| not_written(path, source))
    }

    pub(super) fn wants_lines(&self) -> bool {
        matches!(self, Self::Lines)
    }

    /// Writes whole blocks, or lines.
    pub(super) fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        match self {
            Self::File(Written { file, whole, .. }) => {
                let mut written = 0;
                let result = loop {
                    match file.write(&bytes[written..]) {
                        Ok(0) => break Err(io::ErrorKind::WriteZero.into()),
                        Ok(count) => written += count,
                        Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                        Err(error) => break Err(error),
                    }
                    if written == bytes.len() {
                        break Ok(());
                    }
                };
                *whole += whole_blocks(bytes, written) as u64;
                // The beginning of a block is taken back. That fails where nothing can be: at a pipe, a device.
                if result.is_err() && file.set_len(*whole).is_ok() {
                    let _ = file.seek(SeekFrom::Start(*whole));
                }
                result
            }
            Self::Standard | Self::Lines => {
                let mut out = io::stdout().lock();
                out.write_all(bytes).and_then(|()| out.flush())
            }
        }
    }

    /// What state it is in after the capture broke off.
    pub(super) fn condition(&self) -> &'static str {
        match self {
            Self::File(Written { whole: 0, .. }) => "; nothing was written",
            Self::File(_) => "; the file can be read up to there",
            Self::Standard | Self::Lines => "",
        }
    }
}

/// Opens a file to write, and whether it is new.
fn make(path: &str) -> io::Result<(File, bool)> {
    match File::create_new(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            let mut there = File::options();
            let there = there.write(true).create(true).truncate(false).open(path)?;
            Ok((there, false))
        }
        result => result.map(|file| (file, true)),
    }
}

fn not_written(path: &str, source: io::Error) -> Error {
    Error::system("write", path, source, "name another file with -w")
}

/// How many bytes the blocks have that end within the first `written`. A block has its length behind its type (pcapng), in network byte order
/// as the relay writes it.
fn whole_blocks(blocks: &[u8], written: usize) -> usize {
    let mut end = 0;
    while let Some(&[a, b, c, d]) = blocks[end..].get(4..8) {
        let len = u32::from_be_bytes([a, b, c, d]) as usize;
        if len == 0 || end + len > written {
            break;
        }
        end += len;
    }
    end
}

impl fmt::Display for Output {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::File(Written { path, .. }) => path,
            Self::Standard | Self::Lines => "standard output",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_blocks_count() {
        let block = |len: u8| {
            let mut block = vec![0; usize::from(len)];
            block[7] = len;
            block
        };
        let blocks = [block(12), block(32), block(16)].concat();
        let whole: Vec<usize> = [0, 11, 12, 43, 44, 59, 60]
            .map(|n| whole_blocks(&blocks, n))
            .into();
        assert_eq!(whole, [0, 0, 12, 12, 44, 44, 60]);
        assert_eq!(whole_blocks(&[0; 40], 40), 0);
    }
}
