package offsetadapter

import (
	"math/rand/v2"
	"time"
)

const (
	firstPause   = 10 * time.Millisecond
	longestPause = 500 * time.Millisecond
)

// pauses counts the attempts of a call, a watch, or all commits of a client: the pause between two grows, with jitter, to half a
// second at most.
type pauses struct {
	count int
}

func (p *pauses) next() time.Duration {
	most := min(longestPause, firstPause<<min(p.count, 10))
	p.count++
	return firstPause + rand.N(most-firstPause+1)
}

// forget: an attempt succeeded, and the next pause is a short one.
func (p *pauses) forget() { p.count = 0 }
