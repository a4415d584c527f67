// Package web is the page of an agent: what status, tree, why, plan and history print, for a browser.
//
// It computes no value of its own. Its Source is what control.Client is, so that one handler serves the agent of this
// machine, one elsewhere, and the demo. The words are those of package view, which the terminal shows, too. Every view
// is a GET with a stable address, and complete without JavaScript; the module in assets only replaces regions of the
// page by what the same address answers.
//
// Read in this order: Source, Options, Handler (routes and headers), access.go (who may see it), one file for each view,
// page.templ (their markup; page_templ.go is generated from it by make generate).
package web

import (
	"bytes"
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/a-h/templ"

	"github.com/homestak/homestak-gitops/engine/agent"
	"github.com/homestak/homestak-gitops/engine/control"
	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/engine/ledger"
	"github.com/homestak/homestak-gitops/specserve/wire"
)

// Source answers about an agent: a *control.Client does. An error of it is shown.
type Source interface {
	Status(ctx context.Context) (agent.Status, error)
	Tree(ctx context.Context) (wire.Report, error)
	StatusAndTree(ctx context.Context) (agent.Status, wire.Report, error)
	History(ctx context.Context, n int, address string) (control.History, error)
	Why(ctx context.Context, address string) (control.Reasons, error)
	Plan(ctx context.Context, host, attributes string) (wire.TaskResult, error)
	Events(ctx context.Context, after string, follow bool, each func(control.Event) error) error

	CheckNow(ctx context.Context) error
	CheckNode(ctx context.Context, node string) (control.Asked, error)
	Suspend(ctx context.Context, s ledger.Suspension, span time.Duration) (ledger.Suspension, error)
	Resume(ctx context.Context, manifest string) error
}

// Options configure a handler.
type Options struct {
	Source Source
	Access Access
	// Hosts are what requests may have as their Host, so that no other name can be made to lead here (DNS rebinding).
	// None: any, for a listener whose certificate or proxy says who it is.
	Hosts []string
	Now   func() time.Time // nil: time.Now
}

// policy is the Content-Security-Policy of every answer.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"

// The limits of requests.
const (
	mostForm   = 16 << 10 // bytes of a form
	mostQuery  = 4 << 10  // bytes of an address
	mostStream = 32       // readers of events: each holds one of the 64 connections of the agent
	planTime   = 2 * time.Minute
)

// site is the handler with what it holds.
type site struct {
	o       Options
	streams chan struct{}
	failed  failures // to sign in
}

// asset is a file that browsers may keep: its name has its content's hash.
type asset struct {
	kind string
	data []byte
}

//go:embed assets/*
var files embed.FS

// assetTable has the two files, with their addresses.
type assetTable struct {
	style, module string
	files         map[string]asset // by address
}

var assets = sync.OnceValue(func() assetTable {
	t := assetTable{files: map[string]asset{}}
	add := func(name, kind string) string {
		data, err := files.ReadFile("assets/" + name)
		if err != nil {
			panic(err) // it is embedded
		}
		sum := sha256.Sum256(data)
		base, ext, _ := strings.Cut(name, ".")
		at := "/assets/" + base + "-" + hex.EncodeToString(sum[:6]) + "." + ext
		t.files[at] = asset{kind, data}
		return at
	}
	t.style, t.module = add("style.css", "text/css; charset=utf-8"), add("module.js", "text/javascript; charset=utf-8")
	return t
})

// Handler serves the page.
func Handler(o Options) http.Handler {
	if o.Now == nil {
		o.Now = time.Now
	}
	s := &site{o: o, streams: make(chan struct{}, mostStream)}
	mux := http.NewServeMux()
	show := func(pattern string, render func(x *request) (page, error)) {
		mux.HandleFunc("GET "+pattern, s.signedIn(func(x *request) { x.show(render) }))
	}
	act := func(pattern string, do func(x *request) error) {
		mux.HandleFunc("POST "+pattern, s.signedIn(func(x *request) { x.act(do) }))
	}
	show("/{$}", fleetView)
	show("/host/{name}", hostView)
	show("/node/{name}", nodeView)
	show("/timeline", timelineView)
	show("/commit/{id}", commitView)
	show("/commit/{$}", commitInForce)
	mux.HandleFunc("GET /events", s.signedIn(func(x *request) { x.events() }))
	act("/reconcile", reconcile)
	act("/suspend", suspend)
	act("/resume", resume)
	mux.HandleFunc("GET /assets/{name}", serveAsset)
	mux.HandleFunc("GET /sign-in", s.signInPage)
	mux.HandleFunc("POST /sign-in", s.signIn)
	mux.HandleFunc("POST /sign-out", s.signOut)
	mux.HandleFunc("/", s.signedIn(func(x *request) { x.fail(http.StatusNotFound, errors.New("this page does not exist")) }))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", policy)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Cache-Control", "no-store")
		switch {
		case len(o.Hosts) > 0 && !slices.Contains(o.Hosts, r.Host):
			http.Error(w, "this server does not answer under this name", http.StatusMisdirectedRequest)
		case len(r.URL.RequestURI()) > mostQuery:
			http.Error(w, "the address is too long", http.StatusRequestURITooLong)
		default:
			r.Body = http.MaxBytesReader(w, r.Body, mostForm)
			mux.ServeHTTP(w, r)
		}
	})
}

func serveAsset(w http.ResponseWriter, r *http.Request) {
	a, found := assets().files[r.URL.Path]
	if !found {
		http.Error(w, "this file does not exist", http.StatusNotFound)
		return
	}
	w.Header().Set("Content-Type", a.kind)
	w.Header().Set("Content-Length", strconv.Itoa(len(a.data)))
	w.Header().Set("Cache-Control", "public, max-age=31536000, immutable")
	_, _ = w.Write(a.data)
}

// request is a request of a person who may see the page.
type request struct {
	*http.Request

	*site
	w   http.ResponseWriter
	who visitor
	now time.Time
}

// frame makes the frame of a view.
func (x *request) frame(title, name string) frame {
	return frame{Title: title, View: name, Here: x.URL.RequestURI(), Wall: x.URL.Query().Has("wall"), Live: true, Visitor: x.who, SignedIn: true}
}

// show renders a view.
func (x *request) show(render func(x *request) (page, error)) {
	p, err := render(x)
	if r, ok := errors.AsType[redirectError](err); ok {
		http.Redirect(x.w, x.Request, r.to, http.StatusSeeOther)
		return
	}
	if err != nil {
		x.fail(statusOf(err), err)
		return
	}
	x.write(http.StatusOK, pageOf(p))
}

// write sends a page, or nothing of it.
func (x *request) write(status int, page templ.Component) { write(x.Context(), x.w, status, page) }

func write(ctx context.Context, w http.ResponseWriter, status int, page templ.Component) {
	var b bytes.Buffer
	if err := page.Render(ctx, &b); err != nil {
		http.Error(w, "the page cannot be shown", http.StatusInternalServerError)
		return
	}
	text := diag.Clean(b.String()) // markup is as escaped; this is about what would change the order of what is read, or hide
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Header().Set("Content-Length", strconv.Itoa(len(text)))
	w.WriteHeader(status)
	_, _ = io.WriteString(w, text) // who does not take the page has none
}

// fail shows an error as a page.
func (x *request) fail(status int, err error) {
	p := page{frame: x.frame("Problem", ""), Heading: "Problem", Sections: []section{{ID: "problem", Title: "What happened", Alert: true, Still: true, Notes: strings.Split(err.Error(), "\n"), Button: cell{Text: "To the fleet", To: "/"}}}}
	p.Live = false
	x.write(status, pageOf(p))
}

// menu lists the views that have no name in their address.
func menu(here string) []cell {
	list := []cell{{Text: "Fleet", To: "/"}, {Text: "Timeline", To: "/timeline"}, {Text: "Commit", To: "/commit/"}}
	for i := range list {
		list[i].Here = strings.EqualFold(list[i].Text, here)
	}
	return list
}

// redirectError ends a view: it is at another address.
type redirectError struct{ to string }

func (redirectError) Error() string { return "it is at another address" }

// statusOf is the HTTP status of an error of the source.
func statusOf(err error) int {
	p, ok := errors.AsType[*control.ProblemError](err)
	switch {
	case !ok:
		return http.StatusBadGateway
	case p.Status >= http.StatusBadRequest && p.Status != http.StatusUnauthorized:
		return p.Status
	default:
		return http.StatusBadGateway
	}
}
