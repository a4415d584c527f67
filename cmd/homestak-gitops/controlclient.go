package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// remote is an agent that answers on a socket.
type remote struct {
	socket string
	card   agentCard
	http   *http.Client
}

// errNoAgent is why there is nobody to ask.
var errNoAgent = errors.New("no agent is running here")

// standardSocket is where the agent of the machine listens.
const standardSocket = "/run/homestak-gitops/agent.sock"

// noSocket as HOMESTAK_SOCKET says that there is no agent to ask.
const noSocket = "none"

// socketOf says where an agent of this configuration is to listen.
func (a *app) socketOf(f *agentFlags, c *agentConfig) string {
	switch dir := a.env("RUNTIME_DIRECTORY"); {
	case f.socket != "":
		return f.socket
	case a.env("HOMESTAK_SOCKET") != "":
		return a.env("HOMESTAK_SOCKET")
	case dir != "":
		dir, _, _ = strings.Cut(dir, ":")
		return filepath.Join(dir, "agent.sock")
	case os.Geteuid() == 0 && c.from["data_dir"] == "default":
		return standardSocket
	default:
		return filepath.Join(c.DataDir, "agent.sock")
	}
}

// findAgent finds the agent that runs with a configuration: at the socket that is
// named, else where its lock file says, else at the standard place. There it must be
// the one of the data folder, if that was named. errNoAgent if there is none.
func (a *app) findAgent(ctx context.Context, f *agentFlags, c *agentConfig) (*remote, error) {
	named := f.socket
	if named == "" {
		named = a.env("HOMESTAK_SOCKET")
	}
	switch named {
	case "":
	case noSocket:
		return nil, errNoAgent
	default:
		return dialAgent(ctx, named)
	}
	if at := readHolder(filepath.Join(c.DataDir, agentLock)).by.Socket; at != "" {
		if r, err := dialAgent(ctx, at); !errors.Is(err, errNoAgent) {
			return r, err
		}
	}
	r, err := dialAgent(ctx, standardSocket)
	if err == nil && c.from["data_dir"] != "default" && r.card.DataDir != c.DataDir {
		return nil, errNoAgent
	}
	return r, err
}

// dialAgent asks who answers on a socket.
func dialAgent(ctx context.Context, socket string) (*remote, error) {
	r := &remote{socket: socket}
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{Timeout: 5 * time.Second}).DialContext(ctx, "unix", socket)
	}
	r.http = &http.Client{Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true}}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	err := r.get(ctx, "/agent", &r.card)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED):
		return nil, errNoAgent
	case errors.Is(err, fs.ErrPermission):
		return nil, &ending{exitDenied, fmt.Errorf("the agent's socket %s may not be opened by %s\n%s", socket, whoami(), socketHint(socket))}
	case err != nil:
		return nil, err
	}
	return r, nil
}

// socketHint says who may open a socket.
func socketHint(socket string) string {
	hint := "run this as root"
	info, err := os.Stat(socket)
	if err == nil {
		if at, ok := info.Sys().(*syscall.Stat_t); ok {
			gid := strconv.FormatUint(uint64(at.Gid), 10)
			if g, err := user.LookupGroupId(gid); err == nil {
				gid = g.Name
			}
			if gid != "root" {
				hint += ", or as a member of the group " + gid
			}
		}
	}
	return hint
}

func (r *remote) get(ctx context.Context, path string, into any) error {
	return r.call(ctx, http.MethodGet, path, nil, into)
}

func (r *remote) post(ctx context.Context, path string, body, into any) error {
	return r.call(ctx, http.MethodPost, path, body, into)
}

// call asks and reads the answer; into may be nil.
func (r *remote) call(ctx context.Context, method, path string, body, into any) error {
	res, err := r.send(ctx, method, path, body)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if into == nil {
		return nil
	}
	if err := json.NewDecoder(io.LimitReader(res.Body, 256<<20)).Decode(into); err != nil {
		return fmt.Errorf("read the agent's answer: %w", err)
	}
	return nil
}

// send asks; an answer that it gives is one, and its body is the caller's to close.
func (r *remote) send(ctx context.Context, method, path string, body any) (*http.Response, error) {
	var b bytes.Buffer
	if body != nil {
		if err := json.NewEncoder(&b).Encode(body); err != nil {
			return nil, fmt.Errorf("ask the agent: %w", err)
		}
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://agent"+path, &b)
	if err != nil {
		return nil, fmt.Errorf("ask the agent: %w", err)
	}
	res, err := r.http.Do(req)
	if u, ok := errors.AsType[*url.Error](err); ok {
		err = u.Err // the URL is of our making
	}
	if err != nil {
		return nil, fmt.Errorf("ask the agent on %s: %w", r.socket, because(ctx, err))
	}
	if res.StatusCode < 300 {
		return res, nil
	}
	defer res.Body.Close()
	doc := problemDocument{&problem{Message: "the agent answered " + res.Status}}
	if err := json.NewDecoder(io.LimitReader(res.Body, 1<<20)).Decode(&doc); err != nil || doc.Error == nil {
		doc.Error = &problem{Message: "something that is no agent answers on " + r.socket + ": " + res.Status}
	}
	doc.Error.Status = res.StatusCode
	return nil, doc.Error
}
