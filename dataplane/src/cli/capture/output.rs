//! Where a capture goes: a file, standard output, or lines there.
//!
//! A file ends with a whole block whatever happens, so that it can be read.

use std::{
    fmt,
    fs::File,
    io::{self, Seek, SeekFrom, Write},
};

use crate::error::Error;

/// An output that is open.
pub(super) enum Output {
    /// A file of that name, and how many bytes of whole blocks are in it.
    File(File, String, u64),
    /// Standard output.
    Standard,
    /// A line for each frame, to standard output.
    Lines,
}

impl Output {
    /// Opens what `-w` names.
    ///
    /// # Errors
    /// The file can't be made.
    pub(super) fn open(name: Option<&str>) -> Result<Self, Error> {
        match name {
            None => Ok(Self::Lines),
            Some("-") => Ok(Self::Standard),
            Some(path) => match File::create(path) {
                Ok(file) => Ok(Self::File(file, path.to_owned(), 0)),
                Err(source) => Err(Error::system(
                    "write",
                    path,
                    source,
                    "name another file with -w",
                )),
            },
        }
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
            Self::File(file, _, whole) => match file.write_all(bytes) {
                Ok(()) => {
                    *whole += bytes.len() as u64;
                    Ok(())
                }
                Err(error) => {
                    // What of these blocks was written is taken back. That fails where nothing can be: at a pipe, a device.
                    if file.set_len(*whole).is_ok() {
                        let _ = file.seek(SeekFrom::Start(*whole));
                    }
                    Err(error)
                }
            },
            Self::Standard | Self::Lines => {
                let mut out = io::stdout().lock();
                out.write_all(bytes).and_then(|()| out.flush())
            }
        }
    }

    /// What state it is in after the capture broke off.
    pub(super) fn condition(&self) -> &'static str {
        match self {
            Self::File(..) => "; the file can be read up to there",
            Self::Standard | Self::Lines => "",
        }
    }
}

impl fmt::Display for Output {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::File(_, path, _) => path,
            Self::Standard | Self::Lines => "standard output",
        })
    }
}
