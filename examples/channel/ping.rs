//! Sends a message to the card's task "echo", and waits for its return.
use picnic_channel::{Channel, ChannelError};
use std::path::Path;
use std::time::Duration;

/// The answer of the card with this control socket.
pub fn ping(socket: &Path) -> Result<String, ChannelError> {
    let mut channel = Channel::open(socket, "echo")?;
    channel.send(b"hello, card")?;
    let mut message = [0; 64];
    let bytes = channel.receive_within(&mut message, Some(Duration::from_secs(60)))?;
    Ok(String::from_utf8_lossy(&message[..bytes]).into_owned())
}

#[allow(dead_code)]
fn main() -> Result<(), ChannelError> {
    let socket = std::env::args().nth(1).unwrap_or_default();
    println!("{}", ping(socket.as_ref())?);
    Ok(())
}
