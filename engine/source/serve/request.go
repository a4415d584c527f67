package serve

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/format/pktline"
)

// Bounds of a request. A client shows its newest commits first and stops when one is
// known, or after some hundreds that are not.
const (
	mostWants    = 64
	mostHaves    = 32 << 10
	mostShallows = 4 << 10
)

// MostRequest is the maximum size in bytes of a request within these bounds.
const MostRequest = 2 << 20

// request is the request of a client.
type request struct {
	wants    []plumbing.Hash
	shallows map[plumbing.Hash]bool // commits of which the client lacks the parents
	depth    int                    // generations; 0: all
	haves    []plumbing.Hash        // in the order of the client
	more     bool                   // something follows the wants; else the client wants to know its new ends only
	done     bool                   // the client wants its pack now

	multiAck   bool
	detailed   bool // multi_ack_detailed
	noDone     bool
	sideBand   int // bytes of a packet with its length; 0: none
	noProgress bool
}

// requestError is a client's mistake, in words for its user.
type requestError string

func (b requestError) Error() string { return string(b) }

func bad(format string, args ...any) error { return requestError(fmt.Sprintf(format, args...)) }

// lines reads packets. A flush packet is "" and ok; the end is not ok.
type lines struct{ s *pktline.Scanner }

func (l lines) next() (line string, ok bool, err error) {
	if l.s.Scan() {
		return string(bytes.TrimSuffix(l.s.Bytes(), []byte("\n"))), true, nil
	}
	err = l.s.Err()
	var sent *pktline.ErrorLine
	switch {
	case err == nil:
		return "", false, nil
	case errors.Is(err, pktline.ErrInvalidPktLen), errors.As(err, &sent), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.EOF):
		return "", false, bad("the request does not consist of git protocol packets")
	}
	return "", false, err
}

// readRequest reads a request. It keeps nothing of it but ids. An error that is not a
// requestError is the reader's.
func readRequest(r io.Reader) (*request, error) {
	in, req := lines{pktline.NewScanner(r)}, &request{shallows: map[plumbing.Hash]bool{}}
	for {
		line, ok, err := in.next()
		if err != nil {
			return nil, err
		}
		if !ok && len(req.wants) > 0 {
			return nil, bad("the request ends before its flush packet")
		}
		if line == "" {
			break
		}
		if err := req.want(line); err != nil {
			return nil, err
		}
	}
	if len(req.wants) == 0 {
		return req, nil
	}
	for {
		line, ok, err := in.next()
		if err != nil {
			return nil, err
		}
		req.more = req.more || ok
		if line == "" { // one round of haves: the next one is a request of its own
			return req, nil
		}
		if line == "done" {
			req.done = true
			return req, nil
		}
		id, ok := strings.CutPrefix(line, "have ")
		if !ok {
			return nil, bad("expected a commit that you have, got %.60q", line)
		}
		h, err := parseHash(id)
		if err != nil {
			return nil, err
		}
		if len(req.haves) == mostHaves {
			return nil, bad("more than %d commits are named as known; clone again", mostHaves)
		}
		req.haves = append(req.haves, h)
	}
}

// want reads a line before the first flush packet.
func (req *request) want(line string) error {
	word, rest, _ := strings.Cut(line, " ")
	switch word {
	case "want":
		id, features, first := strings.Cut(rest, " ")
		h, err := parseHash(id)
		if err != nil {
			return err
		}
		if first && len(req.wants) == 0 {
			req.features(features)
		}
		if slices.Contains(req.wants, h) {
			return nil
		}
		if len(req.wants) == mostWants {
			return bad("more than %d commits are asked for", mostWants)
		}
		req.wants = append(req.wants, h)
	case "shallow":
		h, err := parseHash(rest)
		if err != nil {
			return err
		}
		if len(req.shallows) == mostShallows {
			return bad("more than %d commits have no parents on your side; clone again", mostShallows)
		}
		req.shallows[h] = true
	case "deepen":
		n, err := strconv.ParseInt(rest, 10, 32)
		if err != nil || n < 1 {
			return bad("%.20q is not a depth", rest)
		}
		req.depth = int(n)
	case "deepen-since", "deepen-not", "deepen-relative", "filter":
		return bad("%s is not supported here; use --depth, or nothing", word)
	default:
		return bad("expected a commit that you want, got %.60q", line)
	}
	return nil
}

// features reads what the client chose of our capabilities. Unknown ones are ignored, as
// git does.
func (req *request) features(list string) {
	for f := range strings.FieldsSeq(list) {
		switch f {
		case "multi_ack":
			req.multiAck = true
		case "multi_ack_detailed":
			req.multiAck, req.detailed = true, true
		case "no-done":
			req.noDone = true
		case "side-band":
			req.sideBand = max(req.sideBand, 1000)
		case "side-band-64k":
			req.sideBand = 65520
		case "no-progress":
			req.noProgress = true
		}
	}
}

func parseHash(id string) (plumbing.Hash, error) {
	if len(id) != 40 || !plumbing.IsHash(id) {
		return plumbing.ZeroHash, bad("%.60q is not an id of a commit", id)
	}
	return plumbing.NewHash(id), nil
}
