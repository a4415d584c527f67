package notify

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"mime"
	"mime/quotedprintable"
	"net"
	netmail "net/mail"
	"net/smtp"
	"net/textproto"
	"net/url"
	"time"

	"github.com/homestak/homestak-gitops/engine/model"
)

// mostTalk bounds what is read from a mail server in one session, in bytes.
const mostTalk = 64 << 10

// bounded is a connection with a limit of bytes to read.
type bounded struct {
	net.Conn
	left int
}

func (b *bounded) Read(p []byte) (int, error) {
	if b.left <= 0 {
		return 0, errors.New("the mail server sends too much data")
	}
	n, err := b.Conn.Read(p[:min(len(p), b.left)])
	b.left -= n
	return n, err
}

// mail sends a message by SMTP: over TLS from the start, or after STARTTLS. Only to this machine itself it may be neither.
func mail(ctx context.Context, n *model.Notify, m message) error {
	u, err := url.Parse(n.Server)
	if err != nil {
		return errors.New("server is not a URL")
	}
	port := cmp.Or(u.Port(), map[string]string{"smtp": "587", "smtps": "465"}[u.Scheme])
	config, err := trust(n)
	if err != nil {
		return err
	}
	config.ServerName = u.Hostname()
	var dialer net.Dialer
	plain, err := dialer.DialContext(ctx, "tcp", net.JoinHostPort(u.Hostname(), port))
	if err != nil {
		return err
	}
	defer func() { _ = plain.Close() }()
	stop := context.AfterFunc(ctx, func() { _ = plain.Close() })
	defer stop()
	var conn net.Conn = &bounded{plain, mostTalk}
	if u.Scheme == "smtps" {
		conn = tls.Client(conn, config)
	}
	c, err := smtp.NewClient(conn, u.Hostname())
	if err != nil {
		return err
	}
	if u.Scheme == "smtp" {
		if offered, _ := c.Extension("STARTTLS"); offered {
			err = c.StartTLS(config)
		} else if !model.OnThisMachine(u.Hostname()) {
			err = errors.New("the mail server does not offer STARTTLS, so nothing is sent to it")
		}
		if err != nil {
			return err
		}
	}
	return deliver(c, u.Hostname(), n, m)
}

// deliver sends a message in a session.
func deliver(c *smtp.Client, server string, n *model.Notify, m message) error {
	from, err := netmail.ParseAddress(n.From)
	if err != nil {
		return errors.New("from is not a mail address")
	}
	to, err := netmail.ParseAddressList(n.To)
	if err != nil {
		return errors.New("to is not a list of mail addresses")
	}
	if n.Secret != "" {
		if err := c.Auth(smtp.PlainAuth("", cmp.Or(n.User, from.Address), n.Secret, server)); err != nil {
			return fmt.Errorf("log in: %w", err)
		}
	}
	if err := c.Mail(from.Address); err != nil {
		return err
	}
	for _, a := range to {
		if err := c.Rcpt(a.Address); err != nil {
			return err
		}
	}
	w, err := c.Data()
	if err != nil {
		return err
	}
	if _, err := w.Write(letter(from, to, m)); err != nil {
		return err
	}
	if err := w.Close(); err != nil {
		said, ok := errors.AsType[*textproto.Error](err)
		if ok && said.Code/100 == 5 {
			return &failure{err: err, final: true} // it is about this letter
		}
		return err
	}
	_ = c.Quit() // it was taken
	return nil
}

// letter is a message in the format of RFC 5322. All messages about an incident form one thread. One that is resent keeps its
// Message-ID.
func letter(from *netmail.Address, to []*netmail.Address, m message) []byte {
	title, text := words(m)
	var b bytes.Buffer
	header := func(name, value string) { fmt.Fprintf(&b, "%s: %s\r\n", name, value) }
	header("From", from.String())
	for i, a := range to {
		if i == 0 {
			header("To", a.String())
		} else {
			header("Cc", a.String())
		}
	}
	header("Subject", mime.QEncoding.Encode("utf-8", title))
	header("Date", m.At.Format(time.RFC1123Z))
	header("Message-ID", "<"+m.ID+"@homestak-gitops.invalid>")
	if m.Incident != "" {
		header("References", "<"+m.Incident+"@homestak-gitops.invalid>")
	}
	header("Auto-Submitted", "auto-generated")
	header("MIME-Version", "1.0")
	header("Content-Type", "text/plain; charset=utf-8")
	header("Content-Transfer-Encoding", "quoted-printable")
	b.WriteString("\r\n")
	q := quotedprintable.NewWriter(&b)
	_, _ = io.WriteString(q, text+"\n") // a buffer takes everything
	_ = q.Close()
	return b.Bytes()
}
