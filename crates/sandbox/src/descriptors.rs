//! Passing open files between this process and the one inside a sandbox.
//!
//! A socket belongs to the network namespace it was made in, whoever holds it. That is
//! what lets a sandbox without any network be reached: the process inside makes the
//! listener and hands it out, and nothing else crosses the border.

use rustix::io::retry_on_intr;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;

/// Longest message; far above any command line the kernel accepts.
const LONGEST: u32 = 64 << 20;

/// Sends bytes and, when given, one open file.
pub(crate) fn send(
    mut socket: &UnixStream,
    content: &[u8],
    file: Option<&dyn AsFd>,
) -> io::Result<()> {
    let length = u32::try_from(content.len()).ok().filter(|length| *length <= LONGEST);
    let length = length.ok_or_else(|| io::Error::other("message too long"))?.to_le_bytes();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let files = file.map(|file| [file.as_fd()]);
    if let Some(files) = &files {
        control.push(SendAncillaryMessage::ScmRights(files));
    }
    // The length is one short write, which carries the file.
    let sent = retry_on_intr(|| {
        sendmsg(socket, &[IoSlice::new(&length)], &mut control, SendFlags::NOSIGNAL)
    })?;
    socket.write_all(&length[sent..])?;
    socket.write_all(content)
}

/// Receives what [`send`] sent. `None` when the other side hung up before a message.
pub(crate) fn receive(mut socket: &UnixStream) -> io::Result<Option<(Vec<u8>, Option<OwnedFd>)>> {
    let mut length = [0u8; 4];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = retry_on_intr(|| {
        let into = &mut [IoSliceMut::new(&mut length)];
        recvmsg(socket, into, &mut control, RecvFlags::CMSG_CLOEXEC)
    })?;
    if received.bytes == 0 {
        return Ok(None);
    }
    let file = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut files) => files.next(),
        _ => None,
    });
    socket.read_exact(&mut length[received.bytes..])?;
    let length = u32::from_le_bytes(length);
    if length > LONGEST {
        return Err(io::Error::other("message too long"));
    }
    let mut content = vec![0; length as usize];
    socket.read_exact(&mut content)?;
    Ok(Some((content, file)))
}
