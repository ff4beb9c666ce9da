//! Archives in `ustar` format (POSIX.1-1988), of plain files only.

use std::io::{self, Write as _};

use flate2::{Compression, write::GzEncoder};

/// Block size of headers and padding.
const BLOCK: usize = 512;
/// Maximum length of a name in a header, without the prefix field.
const MAX_NAME: usize = 100;

/// Compressed archive of one directory.
pub struct Archive {
    out: GzEncoder<Vec<u8>>,
    directory: String,
    /// Modification time of all files, in seconds since 1970.
    time: u64,
}

impl Archive {
    /// Returns an archive of a directory whose files all have this time, in seconds since 1970.
    pub fn new(directory: &str, time: u64) -> Archive {
        let out = GzEncoder::new(Vec::new(), Compression::default());
        Archive { out, directory: directory.to_owned(), time }
    }

    /// Adds a file of mode 0600 with this name in the directory.
    ///
    /// # Errors
    /// The name is too long.
    pub fn add_file(&mut self, name: &str, content: &str) -> io::Result<()> {
        let name = format!("{}/{name}", self.directory);
        self.out.write_all(&file_header(&name, content.len(), self.time)?)?;
        self.out.write_all(content.as_bytes())?;
        let padding = content.len().next_multiple_of(BLOCK) - content.len();
        self.out.write_all(&vec![0; padding])
    }

    /// Completes the archive.
    ///
    /// # Errors
    /// The archive cannot be compressed.
    pub fn finish(mut self) -> io::Result<Vec<u8>> {
        self.out.write_all(&[0; 2 * BLOCK])?;
        self.out.finish()
    }
}

fn file_header(name: &str, size: usize, time: u64) -> io::Result<Vec<u8>> {
    if name.len() > MAX_NAME {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("the name {name} is too long")));
    }
    let mut header = Vec::with_capacity(BLOCK);
    let mut field = |text: &str, width: usize| {
        header.extend(text.bytes().chain(std::iter::repeat(0)).take(width));
    };
    field(name, MAX_NAME);
    field("0000600", 8);
    field("0000000", 8); // owner
    field("0000000", 8); // group
    field(&format!("{size:011o}"), 12);
    field(&format!("{time:011o}"), 12);
    field("        ", 8); // checksum field, blank while the checksum is computed
    field("0", 1); // type: plain file
    field("", 100);
    field("ustar", 6);
    field("00", 2);
    field("", BLOCK - 265);
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    for (to, from) in header.iter_mut().skip(148).zip(format!("{sum:06o}\0 ").bytes()) {
        *to = from;
    }
    Ok(header)
}
