package node

import (
	"crypto/des" //nolint:gosec // The protocol of screens knows no other.
	"encoding/binary"
	"errors"
	"io"
	"math/bits"

	"github.com/homestak/homestak-gitops/sim/pve/core"
	"github.com/homestak/homestak-gitops/sim/pve/perl"
)

// The picture that a screen shows is that of a text console, and black: nothing draws.
const screenWidth, screenHeight = 720, 400

// screen speaks RFB 3.8 (RFC 6143) as QEMU does behind vncproxy, and vncterm for
// containers and nodes: the caller proves by the password that it knows the ticket.
func (o Operator) screen(wire io.ReadWriter, con *Console) error {
	on, name := true, con.node
	o.Ask(func(*core.World) {
		if con.guest != nil {
			on, name = con.guest.Run != nil, "QEMU ("+hostOf(con.guest)+")"
		}
	})
	if !on {
		return perl.Fail("VM %d not running", con.guest.Vmid)
	}
	if err := greetScreen(wire, con); err != nil {
		return perl.Fail("%s", err)
	}
	var first [1]byte // Whether the screen is shared.
	if _, err := io.ReadFull(wire, first[:]); err != nil {
		return hungUpError{err}
	}
	server := binary.BigEndian.AppendUint16(nil, screenWidth)
	server = binary.BigEndian.AppendUint16(server, screenHeight)
	// 32 bits for a pixel, of which 24 count, little endian, true colours of 8 bits each.
	server = append(server, 32, 24, 0, 1, 0, 255, 0, 255, 0, 255, 16, 8, 0, 0, 0, 0)
	server = binary.BigEndian.AppendUint32(server, uint32(len(name))) //nolint:gosec // A short name.
	if _, err := wire.Write(append(server, name...)); err != nil {
		return hungUpError{err}
	}
	depth := 4
	for {
		if err := screenMessage(wire, &depth); err != nil {
			return hungUpError{err}
		}
	}
}

// greetScreen agrees on the version and lets the caller in.
func greetScreen(wire io.ReadWriter, con *Console) error {
	const version = "RFB 003.008\n"
	if _, err := io.WriteString(wire, version); err != nil {
		return err
	}
	said := make([]byte, len(version))
	if _, err := io.ReadFull(wire, said); err != nil {
		return err
	}
	if string(said) != version {
		return errors.New("unsupported version of RFB")
	}
	if _, err := wire.Write([]byte{1, 2}); err != nil { // One kind of security: by password.
		return err
	}
	kind := make([]byte, 1)
	if _, err := io.ReadFull(wire, kind); err != nil {
		return err
	}
	if kind[0] != 2 {
		return errors.New("unknown kind of security")
	}
	if _, err := io.WriteString(wire, con.challenge); err != nil {
		return err
	}
	response := make([]byte, len(con.challenge))
	if _, err := io.ReadFull(wire, response); err != nil {
		return err
	}
	if string(response) != screenResponse(con.password, con.challenge) {
		const why = "Authentication failed"
		_, _ = wire.Write(append([]byte{0, 0, 0, 1, 0, 0, 0, byte(len(why))}, why...))
		return perl.Fail(why)
	}
	_, err := wire.Write([]byte{0, 0, 0, 0})
	return err
}

// screenResponse encrypts the challenge with the first eight characters of a password,
// the bits of each turned around.
func screenResponse(password, challenge string) string {
	var key [8]byte
	for i := range min(len(key), len(password)) {
		key[i] = bits.Reverse8(password[i])
	}
	cipher, err := des.NewCipher(key[:]) //nolint:gosec // As above.
	if err != nil {
		return ""
	}
	out := make([]byte, len(challenge))
	for i := 0; i+8 <= len(out); i += 8 {
		cipher.Encrypt(out[i:], []byte(challenge[i:]))
	}
	return string(out)
}

// screenMessage reads one message of a caller, and shows what it asks to see.
func screenMessage(wire io.ReadWriter, depth *int) error {
	skip := func(n int64) error {
		_, err := io.CopyN(io.Discard, wire, n)
		return err
	}
	read := func(n int) ([]byte, error) {
		b := make([]byte, n)
		_, err := io.ReadFull(wire, b)
		return b, err
	}
	kind, err := read(1)
	if err != nil {
		return err
	}
	switch kind[0] {
	case 0: // How pixels shall look.
		b, err := read(19)
		if err == nil && b[3] != 8 && b[3] != 16 && b[3] != 32 {
			err = errors.New("no such depth")
		}
		if err == nil {
			*depth = int(b[3]) / 8
		}
		return err
	case 2: // Encodings; all know the plain one.
		b, err := read(3)
		if err != nil {
			return err
		}
		return skip(4 * int64(binary.BigEndian.Uint16(b[1:])))
	case 3:
		b, err := read(9)
		if err != nil || b[0] != 0 { // What has changed: nothing does.
			return err
		}
		width, height := int(binary.BigEndian.Uint16(b[5:])), int(binary.BigEndian.Uint16(b[7:]))
		if width > screenWidth || height > screenHeight {
			return errors.New("outside of the screen")
		}
		picture := append([]byte{0, 0, 0, 1}, b[1:]...)
		_, err = wire.Write(append(picture, make([]byte, 4+width*height**depth)...))
		return err
	case 4: // A key.
		return skip(7)
	case 5: // The mouse.
		return skip(5)
	case 6: // Text to paste.
		b, err := read(7)
		if err != nil {
			return err
		}
		return skip(int64(binary.BigEndian.Uint32(b[3:])))
	}
	return errors.New("an unknown message")
}
