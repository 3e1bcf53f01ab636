"""Three designs of the model behind `forecast`, compared once.

Written down on 29 November, before any of the errors below was read for the first two designs:

- The cuts are all of splits.csv that are not out. Whatever a design knows of other labs (the population, the scale of
  its misfit, the width of its intervals) is estimated without the lab that is forecast.
- (a) *One law*: the interaction form (q = 1 is Chinchilla's law) under the population as it ships: Student's t with
  the dependence of runs in it, ln q normal about 0. Draws of its posterior are by importance, about the mode.
- (b) *With a misfit*: (a) with independent runs, and with six functions added to ln L, which are zero below knots at
  a third, two thirds and all of the range of ln N and of ln D, and linear above. Their slopes are normal. Standard
  deviation and dependence are those of a small grid under which the other labs' held-out runs are most probable.
- (c) *The stack* of `forecast` before this comparison.
- In (a) and (b) one number, told by the other labs, stretches the posterior so that 90 % of their held-out runs lie in
  90 % intervals; labs weigh equally.
- A design's number is its RMSE over that of the fresh form that rolling origins choose, the geometric mean over all
  cells that determine one. The simplest design within `MARGIN` of the least wins, in the order (a), (b), (c).
"""
